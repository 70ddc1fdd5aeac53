"""What comes in: which columns become inputs, outputs and weights, and their cells as numbers."""
