"""Forward passes as honest users write them, in which windows meet, or nearly, or PyTorch hides.

`MEETING` and `HIDDEN` are `(model, x) -> (windows, 4)`; `WIDE` are
losses of 300 logits for each window.
"""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def scripted_by_torch(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on its way out, and still in use
        return torch.jit.script(function)


class Body(nn.Module):
    """Applies a function of itself; has a few layers to choose from."""

    def __init__(self, forward, classes=4):
        super().__init__()
        self.lift, self.head = nn.Linear(3, 8), nn.Linear(8, classes)
        self.norm, self.rnn = nn.LayerNorm(8), nn.GRU(8, 8, batch_first=True)
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


def pooled(m, h):
    return m.head(h.mean(1))


@scripted_by_torch
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


@scripted_by_torch
def scripted_loss(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(z, -1).gather(1, target[:, None])[:, 0]


class Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g


class MeetsBackwards(torch.autograd.Function):
    """Harmless forwards; adds windows together when gradients come."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0)


class Likelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, target):
        ctx.save_for_backward(z, target)
        return -z.log_softmax(-1).gather(1, target[:, None])[:, 0]

    @staticmethod
    def backward(ctx, g):
        z, target = ctx.saved_tensors
        return (z.softmax(-1) - F.one_hot(target, z.shape[1])) * g[:, None], None


def flipped_by(where):
    return lambda m, x: pooled(m, m.lift(x) + where(m.lift(x).tanh()))


def scaled(function):
    """A normalisation whose scale comes from everybody's data."""
    return lambda m, x: pooled(m, function(m.lift(x), x.mean((0, 1)).repeat(3)[:8].abs() + 0.1))


def summed_by_product(m, x):
    h = m.lift(x)
    mixer = torch.linspace(0, 1, len(x) ** 2, dtype=x.dtype).view(1, len(x), len(x))
    return pooled(m, h + (h.permute(1, 2, 0) @ mixer).permute(2, 0, 1))


def hook_in_forward(m, x):
    h = m.lift(x)
    h.register_hook(lambda g: g - g.mean(0))
    return pooled(m, h)


def sorted_lengths(x):
    return (x[:, :, 0] > 0).sum(1).clamp_min(1).sort(descending=True)


def ranks(m, x):
    order = sorted_lengths(x).indices
    return pooled(m, m.lift(x)) * torch.arange(len(x)).float().index_select(0, order)[:, None]


def longest(m, x):
    length = (x[:, :, 0] > 0).sum(1).max()
    return pooled(m, m.lift(x)[:, : length.clamp_min(1)])


def branch(m, x):
    h = m.lift(x)
    return pooled(m, h * 2.0 if bool((x > 1.5).any()) else h)


def picked(index):
    """`x[arange(windows), index]`, where the index is not one place for each window."""

    def run(m, x):
        h = m.lift(x)
        found = h[torch.arange(len(x)), index(x)]
        return pooled(m, h + found.flatten(1, -2).mean(1, keepdim=True))

    return run


MEETING = {
    "picked by a column": picked(lambda x: (x[:, :1, 0] > 0).long()),
    "picked by a row": picked(lambda x: (x[:, :1, 0] > 0).long().t()),
    "picked by a square": picked(lambda x: (x[:, :1, 0] > 0).long().expand(-1, len(x))),
    "centred": lambda m, x: pooled(m, m.lift(x) - m.lift(x).mean(0)),
    "flip, places": flipped_by(lambda h: h.flip(1, 0)),
    "flip, tuple": flipped_by(lambda h: h.flip((1, 0))),
    "flip, negative": flipped_by(lambda h: h.flip(-3, 1)),
    "flip, named": flipped_by(lambda h: torch.flip(h, dims=(0,))),
    "roll": flipped_by(lambda h: h.roll((1, 1), (1, 0))),
    "roll, negative": flipped_by(lambda h: h.roll(1, -3)),
    "roll, flat": flipped_by(lambda h: h.roll(1)),
    "cumsum": flipped_by(lambda h: h.cumsum(0)),
    "cumsum, named": flipped_by(lambda h: h.cumsum(dim=-3)),
    "cumsum, axis": flipped_by(lambda h: torch.cumsum(h, axis=0)),
    "sort": flipped_by(lambda h: h.sort(0).values),
    "sort last": flipped_by(lambda h: h.permute(1, 2, 0).sort().values.permute(2, 0, 1)),
    "argsort last": flipped_by(
        lambda h: h.permute(1, 2, 0).argsort().permute(2, 0, 1).to(h.dtype) * h
    ),
    "trapezoid": flipped_by(
        lambda h: F.pad(torch.cumulative_trapezoid(h.permute(1, 2, 0)), (1, 0)).permute(2, 0, 1)
    ),
    "softmax": flipped_by(lambda h: h.softmax(0)),
    "norm": flipped_by(lambda h: h / torch.linalg.norm(h.permute(1, 0, 2), 2, 1)[:, None][:1]),
    "std": flipped_by(lambda h: h / (h.permute(1, 0, 2).std(False) + 1)),
    "unbind, axis": flipped_by(lambda h: torch.unbind(h, axis=0)[0].expand_as(h)),
    "cat, axis": flipped_by(lambda h: torch.cat([h[1:], h[:1]], axis=0)),
    "picked windows": flipped_by(lambda h: h[h[:, 0, 0].argsort()]),
    "masked windows": flipped_by(lambda h: h * h[h[:, 0, 0] > 0].sum(0)),
    "nonzero": flipped_by(lambda h: h * float(len((h > 0.9).nonzero()))),
    "unique": flipped_by(lambda h: h * torch.unique((h.detach() * 2).round()).sum()),
    "index put": flipped_by(
        lambda h: torch.zeros(3, 8, dtype=h.dtype).index_put(
            (h[:, 0, 0].gt(0).long(),), h[:, 0], accumulate=True
        ).sum(0) + h
    ),
    "scatter": flipped_by(
        lambda h: torch.zeros_like(h).scatter(0, torch.zeros_like(h).long(), h).sum(0) + h
    ),
    "einsum": flipped_by(lambda h: torch.einsum("nth,mth->nth", h, h)),
    "tensordot": flipped_by(lambda h: torch.tensordot(h, h, ([2], [2])).sum((2, 3))[..., None] + h),
    "covariance": flipped_by(lambda h: h @ torch.cov(h.flatten(0, 1).t())),
    "distances": flipped_by(lambda h: h * torch.cdist(h[:, 0], h[:, 0]).mean()),
    "strided": flipped_by(lambda h: h + h.contiguous().as_strided((1, 4, 8), (32, 8, 1)).detach()),
    "unfold": flipped_by(lambda h: h + F.pad(h, (0, 0, 0, 0, 0, 1)).unfold(0, 2, 1).sum(-1)),
    "batch norm": lambda m, x: pooled(
        m, F.batch_norm(m.lift(x).transpose(1, 2), None, None, training=True).transpose(1, 2)
    ),
    "data as a table": lambda m, x: pooled(
        m, F.embedding(torch.zeros(len(x), 4).long(), x.mean(0).repeat(1, 3)[:, :8]) + m.lift(x)
    ),
    "data as a kernel": lambda m, x: pooled(
        m, F.linear(m.lift(x), x.mean(0).repeat(2, 3)[:8, :8])
    ),
    "bias of data": lambda m, x: pooled(
        m, F.conv1d(m.lift(x).transpose(1, 2), torch.ones(8, 1, 1, dtype=x.dtype),
                    x.mean((0, 1)).repeat(3)[:8],
                    groups=8).transpose(1, 2)
    ),
    "recurrence of data": lambda m, x: pooled(
        m, torch.rnn_tanh(m.lift(x), torch.zeros(1, len(x), 8, dtype=x.dtype),
                          [x.mean(0).repeat(2, 3)[:8, :8], torch.eye(8, dtype=x.dtype)],
                          False, 1, 0.0, False, False, True)[0]
    ),
    "layer norm": scaled(lambda h, w: F.layer_norm(h, (8,), w, w)),
    "rms norm": scaled(lambda h, w: F.rms_norm(h, (8,), w)),
    "group norm": scaled(lambda h, w: F.group_norm(h.transpose(1, 2), 2, w, w).transpose(1, 2)),
    "instance norm": scaled(
        lambda h, w: F.instance_norm(h.transpose(1, 2), weight=w, bias=w).transpose(1, 2)
    ),
    "prelu": scaled(lambda h, w: F.prelu(h.transpose(1, 2), w).transpose(1, 2)),
    "summed by a product": summed_by_product,
    "ranks": ranks,
    "sorted": lambda m, x: pooled(m, m.lift(x)) * sorted_lengths(x).values[:, None],
    "longest": longest,
    "branch": branch,
    "types": lambda m, x: pooled(
        m, m.lift(x)
    ) * (x > 0).type_as(torch.ones(1, dtype=torch.double)).mean().to(x.dtype),
    "one hot": lambda m, x: pooled(
        m, m.lift(x)
    ) * float(F.one_hot((x[:, 0, 0].abs() * 3).long()).shape[1]),
}  # fmt: skip


def elsewhere(start):
    """What `start` makes another thread compute: the mean of everybody's."""

    def run(m, x):
        box = []
        start(lambda: box.append(x.mean(0)))
        return pooled(m, m.lift(x - box[0]))

    return run


def by_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def by_pool(work):
    with ThreadPoolExecutor(2) as pool:
        pool.submit(work).result()


def by_timer(work):
    timer = threading.Timer(0, work)
    timer.start()
    timer.join()


THREADS = {
    "thread": elsewhere(by_thread),
    "pool": elsewhere(by_pool),
    "timer": elsewhere(by_timer),
    "several": lambda m, x: pooled(
        m, m.lift(x - sum(ThreadPoolExecutor(2).map(lambda v: v.mean(0) / 2, (x, x))))
    ),
}

HIDDEN = {
    "scripted": lambda m, x: pooled(m, m.lift(scripted(x))),
    "scripted weights": lambda m, x: pooled(m, scripted(m.lift(x))),
    "scripted aside": lambda m, x: pooled(m, m.lift(x) + scripted(x).square().mean()),
    "function": lambda m, x: pooled(m, m.lift(Centre.apply(x))),
    "function backwards": lambda m, x: pooled(m, MeetsBackwards.apply(m.lift(x))),
    "operator": lambda m, x: pooled(m, m.lift(x - torch.ops.aten.mean.dim(x, [0]))),
    "packet": lambda m, x: pooled(m, m.lift(x - torch.ops.aten.mean(x, [0]))),
    "parameter": lambda m, x: pooled(m, m.lift(x - nn.Parameter(x, requires_grad=False).mean(0))),
    "alias": lambda m, x: pooled(m, m.lift(x - x.as_subclass(torch.Tensor).mean(0))),
    "array": lambda m, x: pooled(m, m.lift(x - torch.from_numpy(x.numpy().mean(0)))),
    "numbers": lambda m, x: pooled(m, m.lift(x - float(x.mean()))),
    "list": lambda m, x: pooled(m, m.lift(x - torch.tensor(x.tolist()).mean(0))),
    "nested": lambda m, x: pooled(
        m, m.lift(x - torch.nested.nested_tensor(list(x)).to_padded_tensor(0.0).mean(0))
    ),
    "vmap": lambda m, x: pooled(m, m.lift(torch.vmap(lambda c: c - c.mean(0), 1, 1)(x))),
    "gradient inside": lambda m, x: pooled(
        m, m.lift(torch.func.grad(lambda v: (v.mean(0) ** 3).sum())(x) + x)
    ),
    "double backward": lambda m, x: pooled(m, m.lift(x)) * torch.autograd.grad(
        m.lift(x).square().sum(), m.lift.weight, create_graph=True
    )[0].square().sum(),
    "gradient aside": lambda m, x: pooled(m, m.lift(x)) + 0 * torch.autograd.grad(
        m.lift(x).sum(), m.lift.bias, retain_graph=True
    )[0].sum(),
    "hook": hook_in_forward,
    "called": lambda m, x: torch.func.functional_call(
        m.head, dict(m.head.named_parameters()), (m.lift(x).mean(1),)
    ),
    "checkpoint": lambda m, x: m.head(
        checkpoint(lambda v: m.lift(v).tanh().mean(1), x, use_reentrant=False)
    ),
    "in place on a recurrence": lambda m, x: pooled(m, m.rnn(m.lift(x))[0].mul_(2.0)),
    "complex": lambda m, x: pooled(
        m,
        torch.view_as_real(torch.view_as_complex(m.lift(x).unflatten(-1, (4, 2))) ** 2).flatten(2),
    ),
    "unfolded steps": lambda m, x: pooled(m, m.lift(x).unfold(1, 2, 1).sum(-1)),
    "caught": lambda m, x: pooled(m, caught(m.lift(x))),
}  # fmt: skip


def caught(h):
    """A fallback that only one engine takes."""
    try:
        return torch.ops.aten.mul.Tensor(h, 2.0)
    except Exception:
        return h


def smoothed(z, target):
    return F.cross_entropy(z, target, reduction="none", label_smoothing=0.1)


def by_hand(z, target):
    return -z.log_softmax(-1).gather(1, target[:, None])[:, 0]


def peeked(then):
    def loss(m, x, target):
        z = m(x)
        with torch.no_grad():
            _ = z.argmax(-1), z.softmax(-1)
        return then(z, target)

    return loss


def in_place(m, x, target):
    z = m(x)
    z.div_(2.0)
    return F.cross_entropy(z, target, reduction="none")


def in_place_on_a_view(m, x, target):
    z = m(x)
    z.view(-1, 300).mul_(0.5)
    return F.cross_entropy(z, target, reduction="none")


def in_place_on_what_came_before(m, x, target):
    h = m.lift(x).mean(1).tanh() * 1.0
    z = m.head(h)
    with torch.no_grad():
        old = h.clone()
        h.add_(1.0)
        h.copy_(old)
    return F.cross_entropy(z, target, reduction="none")


def teacher(m, x, target):
    with torch.no_grad():
        t = m(x)
    return F.kl_div(
        m(x * 0.5).log_softmax(-1), t.softmax(-1), reduction="none"
    ).sum(-1)  # fmt: skip


def teacher_alone(m, x, target):
    with torch.no_grad():
        t = m(x)
    return F.cross_entropy(t, target, reduction="none") + by_hand(m(x * 0.5), target)


def half(m, x, target):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = m(x)
    return F.cross_entropy(z.float(), target, reduction="none")


WIDE = {
    "peeked, smoothed": peeked(smoothed),
    "peeked, by hand": peeked(by_hand),
    "peeked": peeked(lambda z, t: F.cross_entropy(z, t, reduction="none")),
    "smoothed": lambda m, x, t: smoothed(m(x), t),
    "scripted": lambda m, x, t: scripted_loss(m(x), t),
    "function": lambda m, x, t: Likelihood.apply(m(x), t),
    "operator": lambda m, x, t: by_hand(torch.ops.aten.mul.Tensor(m(x), 0.5), t),
    "in place": in_place,
    "in place on a view": in_place_on_a_view,
    "teacher": teacher,
    "teacher alone": teacher_alone,
    "detached": lambda m, x, t: by_hand(m(x) - m(x).detach() * 0.5, t),
    "data": lambda m, x, t: by_hand(m(x) - m(x).data * 0.5, t),
}
