"""Spaces of configurations and the kinds of hyperparameters they are made of."""
