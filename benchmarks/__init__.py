"""Benchmarks that anybody can run: `make bench`, or one of them with `python -m benchmarks.NAME`."""
