"""Compiled kernels behind a plain C interface, loaded with ctypes; absent, PyTorch does the work."""
