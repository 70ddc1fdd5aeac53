"""Deliberate bugs in the scheduler and the event log. Some test must find each of them: see `__main__.py`."""
