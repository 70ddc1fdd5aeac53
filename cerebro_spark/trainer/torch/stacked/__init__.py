"""Several PyTorch trials of one architecture computed as one model; the bits of each are those of its single unit."""
