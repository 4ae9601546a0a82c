"""Compiled kernels behind a plain C interface; where they are absent, PyTorch does the work."""
