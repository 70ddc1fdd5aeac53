"""A small real Hadoop cluster for tests: each daemon a process that a test may kill. The product never uses it."""
