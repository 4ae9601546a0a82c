"""Forward passes as people write them, beyond layers: filling, pooling, choosing, comparing.

Each is `(model, x, mask) -> (windows, 4)`; `FAST` must be followed, `MEETING` must not be
followed wrongly, whatever sizes coincide.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Pooling(nn.Module):
    """A few weights, and a function of them."""

    def __init__(self, forward):
        super().__init__()
        self.lift, self.head, self.inner = nn.Linear(3, 8), nn.Linear(8, 4), nn.Linear(8, 8)
        self.q, self.start = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.cube = nn.Parameter(torch.randn(2, 4, 8) / 4)
        self.run = forward

    def forward(self, x, mask):
        return self.run(self, self.lift(x), mask)


def masked(scores, mask):
    return scores.masked_fill(~mask, float("-inf")).softmax(1)


def attended(m, weights, h):
    return m.head((weights.unsqueeze(-1) * h).sum(1))


def steps(m, h):
    """A recurrence by hand."""
    state = m.start.expand(len(h), 8)
    for t in range(h.shape[1]):
        state = torch.tanh(m.inner(state) + h[:, t])
        yield t, state


def filled(m, h, mask):
    out = h.new_zeros(h.shape)
    for t, state in steps(m, h):
        out[:, t] = state
    return m.head(out.mean(1))


def filled_from_public(m, h, mask):
    out = torch.zeros(h.shape[0], h.shape[1], 8, dtype=h.dtype)
    for t, state in steps(m, h):
        out[:, t, :] = state
    return m.head(out.mean(1))


def filled_steps_first(m, h, mask):
    out = torch.empty(h.shape[1], h.shape[0], 8, dtype=h.dtype)
    for t, state in steps(m, h):
        out[t] = state
    return m.head(out.transpose(0, 1).mean(1))


def filled_backwards(m, h, mask):
    out = h.new_zeros(h.shape)
    for t, state in steps(m, h):
        out[..., -1 - t, :] = state
    return m.head((out * torch.linspace(0, 1, h.shape[1], dtype=h.dtype)[:, None]).sum(1))


def filled_with_numbers_and_weights(m, h, mask):
    out = torch.zeros_like(h)
    out[:, 0] = m.start
    out[:, 1:] = h[:, :-1]
    out[:, -1, :2] = 0.25
    out[..., 3] = m.q[0] * 0.5
    out[:, :, 2:3] = h.mean(1, keepdim=True)[..., :1]
    return m.head(out.tanh().mean(1))


def added_up_in_place(m, h, mask):
    out = h.new_zeros(h.shape)
    for t, state in steps(m, h):
        out[:, t] = state
        out[:, t] += h[:, t]
        out[:, t, 1:] *= 0.5
    return m.head(out.mean(1))


def filled_flat(m, h, mask):
    out = h.new_zeros(h.shape[0], h.shape[1] * 8)
    out[:, : 8 * h.shape[1]] = h.flatten(1)
    out[:, 0:4] = h[:, 0, :4] ** 2
    return m.head(out.view(h.shape).mean(1))


def read_while_filled(m, h, mask):
    out = h.new_zeros(h.shape[1] + 1, h.shape[0], 8)
    out[0] = h[:, 0] + m.start
    for t in range(h.shape[1]):
        out[t + 1] = torch.tanh(out[t].clone() + h[:, t])
    return m.head(out.mean(0))


def hidden_scores(m, h, mask):
    scores = (h * m.q).sum(-1)
    scores[~mask] = float("-inf")
    return attended(m, scores.softmax(1), h)


FAST = {
    "filled": filled,
    "filled from public": filled_from_public,
    "filled steps first": filled_steps_first,
    "filled backwards": filled_backwards,
    "filled with numbers and weights": filled_with_numbers_and_weights,
    "added up in place": added_up_in_place,
    "filled flat": filled_flat,
    "read while filled": read_while_filled,
    "hidden scores": hidden_scores,
    "h @ q": lambda m, h, mask: attended(m, masked(h @ m.q, mask), h),
    "matmul": lambda m, h, mask: attended(m, masked(torch.matmul(h, m.q), mask), h),
    "q @ h": lambda m, h, mask: attended(m, masked(m.q @ h.transpose(1, 2), mask), h),
    "W @ h": lambda m, h, mask: m.head((m.inner.weight @ h.mT).mean(2)),
    "vectors of rows": lambda m, h, mask: m.head(h.mean(1) * (h.mean(1) @ m.q)[:, None]),
    "mv": lambda m, h, mask: m.head(h.mean(1) * torch.mv(h.mean(1), m.q)[:, None]),
    "by a public vector": lambda m, h, mask: attended(
        m, masked(h @ torch.linspace(-1, 1, 8, dtype=h.dtype), mask), h
    ),
    "a learned query for each head": lambda m, h, mask: attended(
        m, masked((h.unflatten(-1, (2, 4)) @ m.q[:4]).mean(-1), mask), h
    ),
    "bmm": lambda m, h, mask: m.head(torch.bmm(masked(h @ m.q, mask).unsqueeze(1), h).squeeze(1)),
    "pooled by einsum": lambda m, h, mask: m.head(
        torch.einsum("bt,btd->bd", masked(h @ m.q, mask), h)
    ),
    "scores by einsum": lambda m, h, mask: attended(
        m, masked(torch.einsum("btd,bd->bt", h, h[:, -1]), mask), h
    ),
    "attention by einsum": lambda m, h, mask: m.head(
        torch.einsum("bst,btd->bsd", torch.einsum("bsd, btd -> bst", h, h).softmax(-1), h).mean(1)
    ),
    "heads by einsum": lambda m, h, mask: m.head(
        torch.einsum(
            "bhst,bthd->bshd",
            torch.einsum("bshd,bthd->bhst", *[h.unflatten(-1, (2, 4))] * 2).softmax(-1),
            h.unflatten(-1, (2, 4)),
        )
        .flatten(2)
        .mean(1)
    ),
    "einsum under an ellipsis": lambda m, h, mask: attended(
        m, masked(torch.einsum("...td,...d->...t", h, h[:, 0]), mask), h
    ),
    "einsum of one": lambda m, h, mask: m.head(torch.einsum("btd->bd", h)),
    "einsum turns": lambda m, h, mask: m.head(torch.einsum("btd->tdb", h).mean(0).T),
    "einsum and a constant": lambda m, h, mask: m.head(
        torch.einsum(
            "btd,st->bsd", h, torch.ones(h.shape[1], h.shape[1], dtype=h.dtype).tril()
        ).mean(1)
    ),
    "einsum of three": lambda m, h, mask: m.head(
        torch.einsum("btd,bt,bd->bd", h, h[..., 0], h[:, 0])
    ),
    "einsum in a list": lambda m, h, mask: m.head(torch.einsum("btd,bt->bd", [h, h[..., 0]])),
    "einsum and a vector": lambda m, h, mask: attended(
        m, masked(torch.einsum("btd,d->bt", h, m.q), mask), h
    ),
    "einsum and a matrix": lambda m, h, mask: m.head(
        torch.einsum("btd,ed->bte", h, m.inner.weight).tanh().mean(1)
    ),
    "einsum, the matrix first": lambda m, h, mask: m.head(
        torch.einsum("ed,btd->ebt", m.inner.weight, h).tanh().mean(2).T
    ),
    "einsum and a cube": lambda m, h, mask: m.head(
        torch.einsum("btd,ked->bket", h, m.cube).tanh().mean(3).flatten(1)
    ),
    "einsum over two letters": lambda m, h, mask: m.head(
        torch.einsum("btke,ked->btd", h.unflatten(-1, (2, 4)), m.cube).mean(1)
    ),
    "einsum sums alone": lambda m, h, mask: m.head(
        h.mean(1) * torch.einsum("btd,kde->be", h[..., :4], m.cube)
    ),
    "einsum outer": lambda m, h, mask: m.head(torch.einsum("bt,d->btd", h[..., 0], m.q).mean(1)),
    "einsum and a matrix under an ellipsis": lambda m, h, mask: m.head(
        torch.einsum("...d,ed->...e", h, m.inner.weight).mean(1)
    ),
    "topk": lambda m, h, mask: m.head(h.topk(2, dim=1).values.mean(1)),
    "topk, last": lambda m, h, mask: m.head(torch.topk(h.transpose(1, 2), 2)[0].sum(-1)),
    "topk and gather": lambda m, h, mask: m.head(
        h.gather(1, (h @ m.q).topk(2).indices.unsqueeze(-1).expand(-1, -1, 8)).mean(1)
    ),
    "topk behind": lambda m, h, mask: m.head(h.transpose(0, 1).topk(k=2, dim=0)[0].mean(0)),
    "kthvalue": lambda m, h, mask: m.head(h.kthvalue(2, dim=1).values),
    "kthvalue before": lambda m, h, mask: m.head(h.transpose(0, 1).kthvalue(2, 0)[0]),
    "sort": lambda m, h, mask: m.head(h.sort(1, descending=True)[0][:, :2].mean(1)),
    "sort, stable": lambda m, h, mask: m.head(torch.sort(h, stable=True, dim=-2)[0][:, 0]),
    "argsort": lambda m, h, mask: m.head(
        torch.take_along_dim(h, (h @ m.q).argsort(dim=1)[:, :, None], dim=1)[:, 0]
    ),
    "cosine": lambda m, h, mask: attended(
        m, masked(F.cosine_similarity(h, h[:, -1:], dim=-1), mask), h
    ),
    "cosine, as it comes": lambda m, h, mask: m.head(
        h.mean(1) * F.cosine_similarity(h[:, 0], h[:, 1])[:, None]
    ),
    "cosine to a weight": lambda m, h, mask: attended(
        m, masked(F.cosine_similarity(h, m.q, dim=2), mask), h
    ),
    "cosine to public": lambda m, h, mask: attended(
        m, masked(nn.CosineSimilarity(dim=-1)(torch.ones(1, 1, 8, dtype=h.dtype), h), mask), h
    ),
    "cosine before": lambda m, h, mask: m.head(
        F.cosine_similarity(h.permute(2, 1, 0), h.permute(2, 1, 0) ** 2, 1).T
    ),
}


def overlaid(m, h, mask):
    """Another name of the memory, taken before people's numbers were written into it."""
    out = h.new_zeros(h.shape)
    other = out.view(h.shape[1], h.shape[0], 8)
    out[:, 0] = h[:, 0]
    return m.head(h.mean(1) + other.mean((0, 1)))


def overlaid_and_used(m, h, mask):
    """The same name, used with people's numbers before and after."""
    out = torch.zeros(h.shape, dtype=h.dtype)
    other = out[0, 0]
    before = h + other
    out[:, 0] = before[:, 0]
    return m.head((h + other).mean(1))


def overlapping(m, h, mask):
    n = len(h)
    out = torch.zeros(2 * n, dtype=h.dtype).as_strided((n, 2), (1, 1))
    out[:, 0] = h[:, 0, 0]
    return m.head(h.mean(1) * out[:, 1:])


def one_window(m, h, mask):
    out = h.new_zeros(h.shape)
    out[0] = h[0]
    return m.head(h.mean(1) + out.mean(1))


def of_others(m, h, mask):
    out = h.new_zeros(h.shape)
    out[:, 0] = h[:, 0]
    out[:, 1] = h[:, 0].flip(0)
    return m.head(out.mean(1))


def others_in_place(m, h, mask):
    out = h.new_zeros(h.shape)
    out[:, 0] = h[:, 0]
    out[:-1, 1] = h[1:, 1]
    return m.head(out.mean(1))


def sum_of_everybody(m, h, mask):
    out = h.new_zeros(h.shape)
    out[:, 0] = h[:, 0]
    out[:, 1] = h[:, 1].sum(0)
    return m.head(out.mean(1))


def by_place(m, h, mask):
    out = h.new_zeros(h.shape)
    out[:, 0] = h[:, 0]
    out[:, 1, 0] = torch.arange(len(h)).to(h.dtype)
    return m.head(out.mean(1))


def masked_by_others(m, h, mask):
    scores = (h * m.q).sum(-1)
    scores[mask.flip(0)] = -3.0
    return attended(m, scores.softmax(1), h)


def masked_values(m, h, mask):
    scores = (h * m.q).sum(-1)
    with torch.no_grad():
        found = scores[mask]
    scores[mask] = found * 2
    return attended(m, scores.softmax(1), h)


def across(m, h, mask):
    """Along the other axis of a square: windows and steps trade places."""
    out = h.new_zeros(len(h), len(h), 8)
    out[0] = h[:, 0]
    return m.head(h.mean(1) + out.mean((0, 1)))


def into_a_buffer(m, h, mask):
    """Memory that something else made, zeroed by the function that else makes its own."""
    buffer = torch.linspace(0, 1, h.numel(), dtype=h.dtype).view(h.shape)
    out = torch.zeros(h.shape, out=buffer)
    out[:, 0] = h[:, 0]
    return m.head(out.mean(1))


def weights_first(m, h, mask):
    """Nobody meets, but a tensor that weights are written into first is taken for a weight."""
    out = h.new_zeros(h.shape)
    out[:, 0] = m.start
    out[:, 1] = h[:, 1]
    return m.head(out.mean(1))


def as_long_as_the_longest(m, h, mask):
    """A decoder whose output is no longer than the longest window of all."""
    out = h.new_zeros((len(h), mask.sum(1).max(), 8))
    for t in range(out.shape[1]):
        out[:, t] = h[:, t]
    return m.head(out.mean(1))


def read_by(length):
    """Divides by a length of everybody's that is not read as a number, but by a function."""
    return lambda m, h, mask: m.head(h.sum(1) / length(h, mask, mask.sum(1).max()))


LENGTHS = {
    "new_zeros": lambda h, mask, n: h.new_zeros(n).shape[0],
    "new_zeros of a tuple": lambda h, mask, n: h.new_zeros((2, n)).shape[1],
    "new_ones of a list": lambda h, mask, n: h.new_ones([n]).sum(),
    "new_full": lambda h, mask, n: h.new_full([n], 1.0).shape[0],
    "new_empty": lambda h, mask, n: h.new_empty((n, 1)).shape[0],
    "new_tensor": lambda h, mask, n: h.new_tensor([n]),
    "topk": lambda h, mask, n: h.topk(n, dim=1)[0].shape[1],
    "adaptive_avg_pool1d": lambda h, mask, n: F.adaptive_avg_pool1d(h.mT, n).shape[2],
    "interpolate": lambda h, mask, n: F.interpolate(h.mT, size=n).shape[2],
    "unfold": lambda h, mask, n: h.unfold(1, n, 1).shape[1] + 1,
    "tril_indices": lambda h, mask, n: torch.tril_indices(n, n).shape[1],
    "hann_window": lambda h, mask, n: torch.hann_window(n).shape[0],
    "randperm": lambda h, mask, n: torch.randperm(n).shape[0],
    "to_sparse": lambda h, mask, n: mask.float().to_sparse().indices().shape[1],
    "diagonal": lambda h, mask, n: h.diagonal(n - n.clone(), 0, 1).shape[1],
}

MEETING = {
    "as long as the longest": as_long_as_the_longest,
    **{f"a length by {name}": read_by(length) for name, length in LENGTHS.items()},
    "weights first": weights_first,
    "into a buffer": into_a_buffer,
    "other names": overlaid,
    "other names, used before": overlaid_and_used,
    "memory that overlaps": overlapping,
    "one window": one_window,
    "those of others": of_others,
    "places of others": others_in_place,
    "the sum of everybody": sum_of_everybody,
    "a place in the chunk": by_place,
    "masked by others": masked_by_others,
    "values behind a mask": masked_values,
    "across": across,
    "einsum sums everybody": lambda m, h, mask: m.head(h.mean(1) + torch.einsum("btd->d", h)),
    "einsum between windows": lambda m, h, mask: m.head(
        torch.einsum("bd,cd->bc", h[:, 0], h[:, 0]).softmax(1) @ h[:, 0]
    ),
    "einsum crosses": lambda m, h, mask: m.head(torch.einsum("bd,cd->bd", h[:, 0], h[:, 1])),
    "einsum takes a diagonal": lambda m, h, mask: m.head(
        h.mean(1) + torch.einsum("bb->b", h[:, 0] @ h[:, 0].T)[:, None]
    ),
    "einsum of implicit letters": lambda m, h, mask: m.head(
        h.mean(1) + torch.einsum("bt,bd", h[..., 0], h[:, 0]).mean()
    ),
    "einsum of a place": lambda m, h, mask: m.head(
        torch.einsum("bd,b->bd", h[:, 0], torch.arange(len(h)).to(h.dtype))
    ),
    "einsum under a lost ellipsis": lambda m, h, mask: m.head(
        h.mean(1) + torch.einsum("...d->d", h)
    ),
    "einsum of turned windows": lambda m, h, mask: m.head(
        torch.einsum("bd,bd->bd", h[:, 0], h[:, 0].flip(0))
    ),
    "summed by @": lambda m, h, mask: m.head(h.mean(1) + (h[..., 0].T @ h[:, 0]).mean(0)),
    "topk of windows": lambda m, h, mask: m.head(h.mean(1) + h.topk(1, 0)[0].mean((0, 1))),
    "topk of the last that is windows": lambda m, h, mask: m.head(
        h.mean(1) + h.permute(1, 2, 0).topk(1)[0].mean((0, 2))
    ),
    "kthvalue of windows": lambda m, h, mask: m.head(h.mean(1) + h.kthvalue(1, dim=0)[0].mean(0)),
    "windows sorted": lambda m, h, mask: m.head(h.sort(0)[0].mean(1)),
    "cosine along windows": lambda m, h, mask: m.head(
        h.mean(1) * F.cosine_similarity(h[:, 0], h[:, 1], 0)
    ),
    "cosine along windows, as it comes": lambda m, h, mask: m.head(
        h.mean(1) * F.cosine_similarity(h.transpose(0, 1), h.transpose(0, 1) ** 2).mean(0)
    ),
    "cosine between windows": lambda m, h, mask: m.head(
        F.cosine_similarity(h[:, None, 0], h[None, :, 0], -1).softmax(1) @ h[:, 0]
    ),
}
