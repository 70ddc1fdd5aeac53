"""The trainer for PyTorch models. Importing this package does not load PyTorch."""
