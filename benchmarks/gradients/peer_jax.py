"""The row of jax-privacy: `python -m benchmarks.gradients.peer_jax WORKLOAD jax THREADS [PEOPLE]`.

`clipped_grad` of a whole person (`keep_batch_dim=False`) with the micro-batch that was fastest,
compiled. Ragged people are padded to the most windows anyone owns, since shapes must be fixed.
"""

import os

from benchmarks.gradients.arguments import arguments

GIVEN = arguments(__doc__)
if GIVEN.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_privacy.clipping import clipped_grad  # noqa: E402

from benchmarks.gradients.serve import serve  # noqa: E402
from benchmarks.gradients.workloads import CLIP, data  # noqa: E402

MICRO = {"W1": 4, "W2": 8, "W3": 8, "W4": 8}


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def gru(p, x):
    """`(windows, steps, features)` → outputs, as `nn.GRU` defines them."""
    into = x @ p["rnn.weight_ih_l0"].T + p["rnn.bias_ih_l0"]

    def step(h, i):
        over = h @ p["rnn.weight_hh_l0"].T + p["rnn.bias_hh_l0"]
        (ir, iz, i_n), (hr, hz, hn) = jnp.split(i, 3, -1), jnp.split(over, 3, -1)
        r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
        n = jnp.tanh(i_n + r * hn)
        h = n + z * (h - n)
        return h, h

    start = jnp.zeros((x.shape[0], 128))
    return jax.lax.scan(step, start, into.swapaxes(0, 1))[1].swapaxes(0, 1)


def lstm(p, x):
    into = x @ p["rnn.weight_ih_l0"].T + p["rnn.bias_ih_l0"] + p["rnn.bias_hh_l0"]

    def step(state, a):
        h, c = state
        i, f, g, o = jnp.split(a + h @ p["rnn.weight_hh_l0"].T, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[0], 128))
    return jax.lax.scan(step, (start, start), into.swapaxes(0, 1))[1].swapaxes(0, 1)


def norm(p, name, x):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def transformer(p, x):
    n, t = x.shape
    h = p["emb.weight"][x] + p["pos.weight"][:t]
    mask = jnp.tril(jnp.ones((t, t), bool))
    for block in ("blocks.0.", "blocks.1."):
        qkv = linear(p, block + "qkv", norm(p, block + "ln1", h)).reshape(n, t, 3, 4, 32)
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        score = jnp.where(mask, q @ k.swapaxes(-1, -2) / 32**0.5, -jnp.inf)
        mixed = (jax.nn.softmax(score) @ v).swapaxes(1, 2).reshape(n, t, 128)
        h = h + linear(p, block + "proj", mixed)
        wide = linear(p, block + "f1", norm(p, block + "ln2", h))
        h = h + linear(p, block + "f2", jax.nn.gelu(wide, approximate=False))
    return linear(p, "fc", norm(p, "ln", h))


def person_loss(workload):
    """The mean over a person's windows, weighted by 0 where there is only padding."""

    def loss(p, x, y, share):
        if workload in ("W1", "W4"):
            logits = linear(p, "fc", gru(p, x).mean(1))
        elif workload == "W3":
            logits = linear(p, "fc", lstm(p, p["emb.weight"][x]))
        else:
            logits = transformer(p, x)
        each = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)[..., 0]
        return (each.reshape(len(x), -1).mean(1) * share).sum()

    return loss


def padded(workload, people):
    d = data(workload, people)
    most = int(d.counts.max())
    x = np.zeros((people, most, *d.x.shape[1:]), d.x.dtype)
    y = np.zeros((people, most, *d.y.shape[1:]), d.y.dtype)
    share = np.zeros((people, most), np.float32)
    first = 0
    for person, count in enumerate(d.counts):
        x[person, :count] = d.x[first : first + count]
        y[person, :count] = d.y[first : first + count]
        share[person, :count] = 1.0 / count
        first += count
    return [jnp.asarray(v) for v in (x, y, share)]


def main():
    workload, people = GIVEN.workload, GIVEN.people
    folder = os.environ["SEQUESTER_BENCH_FOLDER"]
    first = {k: jnp.asarray(v) for k, v in np.load(f"{folder}/{workload}-weights.npz").items()}
    lot = padded(workload, people)
    clipped = clipped_grad(
        person_loss(workload), l2_clip_norm=CLIP[workload], keep_batch_dim=False,
        batch_argnums=(1, 2, 3), microbatch_size=MICRO[workload], normalize_by=people,
    )  # fmt: skip
    std = CLIP[workload] / people

    @jax.jit
    def update(p, key, *lot):
        gradient = clipped(p, *lot)
        keys = dict(zip(gradient, jax.random.split(key, len(gradient)), strict=True))
        return {
            k: p[k] - 0.1 * (g + std * jax.random.normal(keys[k], g.shape))
            for k, g in gradient.items()
        }

    state = {"weights": first, "key": jax.random.key(0)}

    def step():
        state["key"], key = jax.random.split(state["key"])
        state["weights"] = jax.block_until_ready(update(state["weights"], key, *lot))

    serve(step, lambda: jax.jit(clipped)(first, *lot), f"micro-batch {MICRO[workload]}")


if __name__ == "__main__":
    main()
