"""Noise of matrix mechanisms: published errors, and brute force."""

import json
import math

import numpy as np
import pytest
import torch

from sequester.accounting import matrix
from sequester.core.errors import UsageError
from tests.shared import needs_shared, shared

PATH = shared("reference", "accounting_vectors.json")
TABLE = json.loads(PATH.read_text()) if PATH.exists() else {"vectors": []}
VECTORS = [v for v in TABLE["vectors"] if v["quantity"] == "mf_error"]


def buffered(decays: list[float], scales: list[float], steps: int) -> np.ndarray:
    """First column of a buffered linear Toeplitz strategy (BLT)."""
    powers = np.array(decays)[:, None] ** np.arange(steps - 1.0)
    return np.concatenate(([1.0], np.array(scales) @ powers))


def banded(steps: int, bands: int, shots: int) -> np.ndarray:
    """The best `bands` coefficients for the mean error of `shots` participations `bands` apart."""
    start = torch.tensor(matrix.square_root(bands))
    falls = torch.log(torch.expm1(torch.log(start[:-1] / start[1:]))).requires_grad_()
    impulse = torch.zeros(steps, dtype=torch.float64)
    impulse[0] = 1.0

    def column() -> torch.Tensor:
        logs = torch.cumsum(torch.nn.functional.softplus(falls), 0)
        return torch.cat([torch.ones(1, dtype=torch.float64), torch.exp(-logs)])

    def loss() -> torch.Tensor:
        c = column()
        spectrum, length = torch.fft.rfft(c, 4 * steps), 4 * steps
        inverse = impulse[:1]
        while inverse.numel() < steps:  # Newton's iteration for 1/c
            size = min(2 * inverse.numel(), steps)
            transform = torch.fft.rfft(inverse, length)
            residue = 2.0 * impulse[:size] - torch.fft.irfft(spectrum * transform, length)[:size]
            inverse = torch.fft.irfft(torch.fft.rfft(residue, length) * transform, length)[:size]
        rows = torch.cumsum(torch.cumsum(inverse, 0) ** 2, 0)
        return shots * (c**2).sum() * rows.mean()  # `shots` bands side by side

    optimiser = torch.optim.LBFGS([falls], max_iter=12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
    found = np.zeros(steps)
    found[:bands] = column().detach().numpy()
    return found


# Found offline by minimising the largest error over four decays and four scales.
BLT4 = (
    [0.9999807804992991, 0.9994787610270437, 0.9897341330818555, 0.8160076759066196],
    [0.006245988259098007, 0.02165925700598371, 0.09460101669096205, 0.3302492473621498],
)


@needs_shared("reference", "accounting_vectors.json")
@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_published_errors(vector: dict) -> None:
    p = vector["params"]
    if p["mech"] == "binary tree":
        assert matrix.tree_error(p["n"]) == pytest.approx(vector["value"], rel=1e-12)
    elif p["mech"].startswith("square-root"):
        found = matrix.prefix_error(matrix.square_root(p["n"]))
        np.testing.assert_allclose(found, vector["value"], rtol=1e-6)
    elif p["mech"].startswith("BLT"):
        largest, _ = matrix.prefix_error(buffered(*BLT4, p["n"]))
        assert vector["accept_lo"] <= largest <= vector["accept_hi"]
        assert largest == pytest.approx(vector["value"], rel=1e-6)
    else:
        column = banded(p["n"], p["bands"], p["k"])
        found = matrix.prefix_error(column, participations=p["k"], separation=p["b"])
        assert vector["value"][1] * 0.999 <= found[1] <= 47.6
        assert found[0] == pytest.approx(vector["value"][0], rel=2e-3)


def test_errors_by_brute_force() -> None:
    rng = np.random.default_rng(11)
    for steps, k, apart in [(1, 1, 1), (7, 1, 1), (9, 2, 3), (16, 3, 4)]:
        column = np.sort(rng.random(steps) + 0.1)[::-1]
        strategy = sum(np.diag(np.full(steps - j, column[j]), -j) for j in range(steps))
        decode = np.tril(np.ones((steps, steps))) @ np.linalg.inv(strategy)
        rows = (decode**2).sum(axis=1)
        squared = matrix.toeplitz_sensitivity(column, participations=k, separation=apart) ** 2
        found = matrix.prefix_error(column, participations=k, separation=apart)
        np.testing.assert_allclose(found, (squared * rows.max(), squared * rows.mean()))
    half = matrix.square_root(6)
    dense = sum(np.diag(np.full(6 - j, half[j]), -j) for j in range(6))
    np.testing.assert_allclose(dense @ dense, np.tril(np.ones((6, 6))), atol=1e-15)
    for leaves in (1, 2, 5, 8, 13):
        most = max(bin(number).count("1") for number in range(1, leaves + 1))
        levels = math.ceil(math.log2(leaves)) + 1
        assert matrix.tree_error(leaves) == pytest.approx(levels * most)
    with pytest.raises(UsageError, match="SQ-219"):
        matrix.prefix_error(np.array([0.0, 0.0]))
