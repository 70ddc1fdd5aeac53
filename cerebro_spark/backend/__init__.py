"""Where units run: one contract (base.py), one file a kind; `driver/` and `worker/` are the two sides of `wire/`."""
