"""A dashboard in the browser: it reads the event logs in a store, and sends commands through the store. No more.

It needs the extra `dashboard`. It unpickles nothing, so it can show runs of people whose code it must not run.
"""
