"""The paper's claims about accuracy, in small: `python -m benchmarks.claims`."""
