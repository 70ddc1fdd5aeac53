"""Where units run: one contract (base.py), one file a kind."""
