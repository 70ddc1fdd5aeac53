"""Training steps of one trial on a CPU, traced once and then repeated without Python's modules and autograd."""
