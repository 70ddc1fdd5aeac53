"""The worker's side of a backend: the process, how it is started, and what it does with its orders."""
