"""The attacks of the table, as what one of a hundred clients sends; numpy only.

Honest clients send a vector of norm 0.5; the bound where a guarantee is asked for is C = 1. The
figure is how far the hostile client moved the new model, times clients, over C, compared with the
same round in which it sent next to nothing. Under a guarantee it must not exceed 1.
"""

from __future__ import annotations

import numpy as np

CLIENTS, SIZE, HOSTILE = 100, 64, 13
KINDS = ("nothing", "honest", "nan", "sign-flip", "scale", "wrong-shape", "examples", "replay")


def honest(client):
    """The update of an honest client."""
    vector = np.random.default_rng(client).normal(size=SIZE)
    return (0.5 * vector / np.linalg.norm(vector)).astype(np.float32)


def sent(client, kind):
    """Update and example count of a client."""
    if client != HOSTILE or kind == "honest":
        return honest(client), 32
    if kind == "replay":  # what another client sent comes in a second time
        return honest(client - 1), 32
    vectors = {
        "nothing": np.full(SIZE, 1e-12, np.float32),
        "nan": np.full(SIZE, np.nan, np.float32),
        "sign-flip": -10 * honest(client),
        "scale": np.float32(1e9) * honest(client),
        "wrong-shape": np.full(1, 0.1, np.float32),
        "examples": honest(client),
    }
    return vectors[kind], 320_000 if kind == "examples" else 32


def table(release):
    """What each attack did to `release(kind)`, which gives the new model from zeros."""
    still = release("nothing")
    rows = {}
    for kind in KINDS[1:]:
        try:
            model = release(kind)
        except Exception as error:
            rows[kind] = f"round lost: {type(error).__name__}"
            continue
        if model is None:
            rows[kind] = "round lost"
        elif model.shape != (SIZE,):
            rows[kind] = "model of another shape"
        elif not np.isfinite(model).all():
            rows[kind] = "model is NaN"
        else:
            rows[kind] = float(np.linalg.norm(model.astype(np.float64) - still) * CLIENTS)
    return rows
