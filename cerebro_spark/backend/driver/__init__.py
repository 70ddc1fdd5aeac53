"""The driver's side of a backend with real workers: starting and replacing them, and keeping track of their orders."""
