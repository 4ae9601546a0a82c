"""Person-level DP-SGD in one sitting: logistic regression, numpy only.

Abadi et al. 2016, algorithm 1, with the person in place of the example. Read it from top to
bottom; sequester's own loop must agree with it step for step (a test compares them).

    python reference/dpsgd.py
"""

from __future__ import annotations

import numpy as np


def person_gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of the mean log-loss over ONE person's records.

    Args:
        weights: `(features + 1,)`, the last one is the bias.
        x: `(records, features)`.
        y: `(records,)` of 0 and 1.
    """
    with_bias = np.hstack([x, np.ones((len(x), 1))])  # (records, features + 1)
    probability = 1.0 / (1.0 + np.exp(-with_bias @ weights))  # (records,)
    return with_bias.T @ (probability - y) / len(x)


def clip(gradient: np.ndarray, bound: float) -> np.ndarray:
    """The same direction, but no longer than `bound`: what one person can do to the sum."""
    return gradient * min(1.0, bound / max(np.linalg.norm(gradient), 1e-300))


def step(
    weights: np.ndarray,
    lot: list[tuple[np.ndarray, np.ndarray]],
    normals: np.ndarray,
    *,
    bound: float,
    noise_multiplier: float,
    expected_lot: float,
    learning_rate: float,
) -> np.ndarray:
    """One private step.

    Args:
        weights: `(features + 1,)`.
        lot: Records and answers of each person drawn; may be empty.
        normals: `(features + 1,)` independent standard normals, never used before.
        bound: One person's largest contribution, C.
        noise_multiplier: Standard deviation of the noise over C.
        expected_lot: Public population times sampling rate; never the size of `lot`.
        learning_rate: Step length.
    """
    total = np.zeros_like(weights)
    for x, y in lot:
        total += clip(person_gradient(weights, x, y), bound)  # everybody: at most C
    total += noise_multiplier * bound * normals  # also when nobody was drawn
    return weights - learning_rate * total / expected_lot


def main() -> None:
    """Train on invented people and print how well it went."""
    generator = np.random.default_rng(0)
    people = []
    for _ in range(2000):
        x = generator.normal(size=(generator.integers(1, 6), 2))
        people.append((x, (x[:, 0] - x[:, 1] > 0).astype(float)))
    weights = np.zeros(3)
    for _ in range(100):
        # A secret coin for every person; shuffling would need another analysis.
        lot = [person for person in people if generator.random() < 0.1]
        weights = step(
            weights,
            lot,
            generator.normal(size=3),  # a real run takes noise from a cryptographic stream
            bound=0.5,
            noise_multiplier=1.5,
            expected_lot=2000 * 0.1,
            learning_rate=2.0,
        )
    right = [((x @ weights[:2] + weights[2] > 0) == (y > 0.5)).mean() for x, y in people]
    print(f"weights {np.round(weights, 2)}, accuracy {np.mean(right):.3f}")


if __name__ == "__main__":
    main()
