"""The arithmetic alone: `python -m benchmarks.gradients.floor WORKLOAD floor THREADS`.

Every product of a step's forward and backward pass once, on operands that lie in the cache
(chunks of 8 people), and one exponential for each gate or class; nothing is stored, normalised,
clipped or added up. No program that computes these gradients with these products can be faster
on this machine's BLAS, short of fewer digits.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from benchmarks.gradients.arguments import arguments
from benchmarks.gradients.serve import serve

CHUNK = 8  # people


def layers(workload):
    """`(rows of a person, inputs, outputs, products, steps)` of each linear map.

    2 products: nobody asks for the inputs' gradient. A recurrent map runs step by step.
    """
    if workload in ("W1", "W4"):
        return [(1024, 6, 384, 2, 1), (1024, 128, 384, 3, 64), (16, 128, 6, 3, 1)]
    if workload == "W3":
        return [(256, 64, 512, 3, 1), (256, 128, 512, 3, 64), (256, 128, 10_000, 3, 1)]
    block = [(128, 384), (128, 128), (128, 512), (512, 128)]
    return [(256, a, b, 3, 1) for a, b in block * 2] + [(256, 128, 10_000, 3, 1)]


def exponentials(workload):
    """Numbers of each chunk that go through an exponential once."""
    gates = {"W1": 3 * 128 * 1024, "W4": 3 * 128 * 1024, "W3": 5 * 128 * 256, "W2": 0}[workload]
    classes = {"W1": 0, "W4": 0, "W3": 10_000 * 256, "W2": 10_000 * 256}[workload]
    attention = 2 * 4 * 256 * 256 if workload == "W2" else 0
    gelu = 2 * 512 * 256 if workload == "W2" else 0
    return CHUNK * (gates + classes + attention + gelu)


def chunk_of(workload):
    products = []
    for rows, wide, out, count, steps in layers(workload):
        size = CHUNK * rows // steps if steps > 1 else rows  # rows of one product
        a, d = torch.randn(size, wide), torch.randn(size, out)
        products.append((a, d, torch.randn(out, wide), count, steps if steps > 1 else CHUNK))
    own = [(torch.randn(rows, wide), torch.randn(rows, out))
           for rows, wide, out, _, _ in layers(workload)]  # fmt: skip
    attention = torch.randn(CHUNK * 4, 256, 32) if workload == "W2" else None
    block = torch.randn(1 << 17)

    def run():
        for a, d, w, count, times in products:
            for _ in range(times):
                torch.mm(a, w.t(), out=d)
            for _ in range(times if count == 3 else 0):
                torch.mm(d, w)
        for a, d in own:
            for _ in range(CHUNK):
                torch.mm(d.t(), a)
        if attention is not None:
            for _ in range(2 * 6):  # two layers; two products forward, four backward
                torch.bmm(attention, attention.transpose(1, 2))
        for _ in range(exponentials(workload) // len(block)):
            torch.exp(block)

    return run


def main():
    given = arguments(__doc__)
    torch.set_num_threads(1)
    workers = [chunk_of(given.workload) for _ in range(given.threads)]
    chunks = given.people // CHUNK // given.threads

    def work(run):
        torch.set_num_threads(1)
        for _ in range(chunks):
            run()

    pool = ThreadPoolExecutor(given.threads)
    serve(lambda: list(pool.map(work, workers)), lambda: {"none": np.zeros(0)})


if __name__ == "__main__":
    main()
