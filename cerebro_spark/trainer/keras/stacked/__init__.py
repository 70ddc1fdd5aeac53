"""Several Keras trials of one architecture computed as one model, on PyTorch; each has the bits of its single unit."""
