"""The trainer for Keras models. Importing this package does not load Keras."""
