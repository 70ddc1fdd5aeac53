"""How PyTorch models lie on a device that is small for them, so that they train the same bits with less memory."""
