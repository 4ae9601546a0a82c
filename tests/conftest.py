"""One thread of PyTorch's in each test process: there is a process for each core."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
