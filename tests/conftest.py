"""One thread of PyTorch's in each test process, for there is a process for each core."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with what takes minutes, lest one core wait for it at the end."""
    items.sort(key=lambda item: "flower/test_deployment" not in item.nodeid)
