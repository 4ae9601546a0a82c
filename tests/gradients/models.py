"""Small models, one for each layer and way of using it; all take (windows, steps, 3) or ids."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 11


class Sequence(nn.Module):
    """Lifts features to 8, applies a body to (windows, steps, 8), pools, classifies."""

    def __init__(self, body, width=8, tokens=False):
        super().__init__()
        self.lift = nn.Embedding(TOKENS, 8) if tokens else nn.Linear(3, 8)
        self.body = body
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.body(self.lift(x)).mean(1))


class First(nn.Module):
    """The first of a module's results."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


class Channels(nn.Module):
    """Runs a module over (windows, channels, steps)."""

    def __init__(self, module, pad=(0, 0)):
        super().__init__()
        self.module, self.pad = module, pad

    def forward(self, x):
        return self.module(F.pad(x.transpose(1, 2), self.pad)).transpose(1, 2)


class StepsFirst(nn.Module):
    """Runs a recurrence over (steps, windows, features)."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x.transpose(0, 1))[0].transpose(0, 1)


class Stateful(nn.Module):
    """A GRU whose initial state is learned, and whose last state is the answer."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(2, 1, 5))
        self.rnn = nn.GRU(8, 5, num_layers=2, batch_first=True)

    def forward(self, x):
        _, last = self.rnn(x, self.start.expand(2, x.shape[0], 5).contiguous())
        return last[-1].unsqueeze(1)


class FromData(nn.Module):
    """An LSTM whose initial state comes from the window itself."""

    def __init__(self):
        super().__init__()
        self.begin = nn.Linear(8, 5)
        self.rnn = nn.LSTM(8, 5, batch_first=True)

    def forward(self, x):
        start = self.begin(x[:, 0]).unsqueeze(0)
        out, (h, c) = self.rnn(x, (start, start.tanh()))
        return out + h[0].unsqueeze(1) * c[0].unsqueeze(1)


class Packed(nn.Module):
    """A packed recurrence over windows of different lengths."""

    def __init__(self, kind=nn.GRU, bidirectional=False):
        super().__init__()
        self.rnn = kind(8, 5, 2, batch_first=True, bidirectional=bidirectional)

    def forward(self, x):
        lengths = (x[:, :, 0].detach() > 0).sum(1).clamp_min(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, last = self.rnn(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        last = last[0] if isinstance(last, tuple) else last
        return torch.cat([out, last[-1].unsqueeze(1).expand(-1, x.shape[1], -1)], -1)


class Cells(nn.Module):
    """A user's own loop over time."""

    def __init__(self, kind):
        super().__init__()
        self.cell = kind(8, 5)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 5)
        state = (h, h) if isinstance(self.cell, nn.LSTMCell) else h
        outs = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            outs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outs, 1)


class Attention(nn.Module):
    def __init__(self, batch_first=True, causal=False):
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.causal, self.batch_first = causal, batch_first

    def forward(self, x):
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = x if self.batch_first else x.transpose(0, 1)
        out = self.mha(x, x, x, need_weights=False, attn_mask=mask)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Weighted(nn.Module):
    """Attention as it comes, with its weights: averaged, or for each head, and masked."""

    def __init__(self, average, causal):
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)
        self.average, self.causal = average, causal

    def forward(self, x):
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(
                x.shape[1], device=x.device, dtype=x.dtype
            )
        out, weights = self.mha(
            x, x, x, attn_mask=mask, is_causal=self.causal, average_attn_weights=self.average
        )
        weights = weights if self.average else weights[:, 0]
        return out + weights @ x


class Crossed(nn.Module):
    """Attention whose queries, keys and values differ, with padding masked out."""

    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True, kdim=4, vdim=4)
        self.same = nn.MultiheadAttention(8, 2, batch_first=True)
        self.keys = nn.Linear(8, 4)

    def forward(self, x):
        k = self.keys(x)
        padding = k[:, :, 0] > 0.5
        padding = padding & (torch.arange(x.shape[1], device=x.device) > 0)
        out = self.mha(x, k, k, need_weights=False, key_padding_mask=padding)[0]
        return self.same(out, x, x, need_weights=False)[0]


class Rows2D(nn.Module):
    """Reshapes windows × steps to rows and back inside forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        n, t, c = x.shape
        return self.inner(x.reshape(n * t, c)).tanh().view(n, t, c)


class FourD(nn.Module):
    """A linear layer on four dimensions."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x.unflatten(-1, (2, 4))).flatten(-2)


class Positions(nn.Module):
    """Positions of shape (1, steps), as broadcast as they come."""

    def __init__(self, raw=False):
        super().__init__()
        self.raw = raw
        self.table = nn.Parameter(torch.randn(16, 8)) if raw else nn.Embedding(16, 8)

    def forward(self, x):
        if self.raw:
            return x + self.table[: x.shape[1]]
        return x * self.table(torch.arange(x.shape[1], device=x.device).unsqueeze(0))


class Token(nn.Module):
    """A learned first step, as class tokens are."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.mix(x.cumsum(1)).tanh()


class Shared(nn.Module):
    """One layer used twice, and one weight used by hand."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x):
        x = self.inner(self.inner(x).tanh()) * self.scale
        return (x @ self.inner.weight).tanh()


class LowRank(nn.Module):
    """A frozen layer with a low-rank adapter, computed both ways."""

    def __init__(self, merged):
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(8, 2))
        self.merged = merged

    def forward(self, x):
        if self.merged:
            return F.linear(x, self.base.weight + self.b @ self.a, self.base.bias)
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


class BiasOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.inner.weight.requires_grad_(False)
        self.norm.weight.requires_grad_(False)

    def forward(self, x):
        return self.norm(self.inner(x))


class Unreached(nn.Module):
    """A layer that no data reaches."""

    def __init__(self):
        super().__init__()
        self.inner, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x)


class HeadFirst(nn.Module):
    """Layers defined in another order than they run."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(8, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, x):
        return self.last(self.first(x)[0])


class Tied(nn.Module):
    """A table that is also the output layer."""

    def __init__(self, tokens=TOKENS):
        super().__init__()
        self.table = nn.Embedding(tokens, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x):
        return F.linear(self.rnn(self.table(x))[0], self.table.weight)


class Wide(nn.Module):
    """A vocabulary wide enough for the fused loss."""

    def __init__(self, tokens=300, bias=True):
        super().__init__()
        self.table = nn.Embedding(tokens, 6)
        self.rnn = nn.GRU(6, 7, batch_first=True)
        self.head = nn.Linear(7, tokens, bias=bias)

    def forward(self, x):
        return self.head(self.rnn(self.table(x))[0])


def encoder(norm_first):
    return nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first, activation="gelu"
    )


BODIES = {
    "identity": lambda: Sequence(nn.Identity()),
    "embedding": lambda: Sequence(nn.Tanh(), tokens=True),
    "linear without bias": lambda: Sequence(nn.Linear(8, 8, bias=False)),
    "rows": lambda: Sequence(Rows2D()),
    "four dimensions": lambda: Sequence(FourD()),
    "gru": lambda: Sequence(First(nn.GRU(8, 5, batch_first=True)), 5),
    "gru without bias": lambda: Sequence(First(nn.GRU(8, 5, bias=False, batch_first=True)), 5),
    "gru steps first": lambda: Sequence(StepsFirst(nn.GRU(8, 5)), 5),
    "gru two layers both ways": lambda: Sequence(
        First(nn.GRU(8, 5, 2, batch_first=True, bidirectional=True)), 10
    ),
    "lstm": lambda: Sequence(First(nn.LSTM(8, 5, batch_first=True)), 5),
    "lstm two layers both ways": lambda: Sequence(
        First(nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True)), 10
    ),
    "rnn tanh": lambda: Sequence(First(nn.RNN(8, 5, batch_first=True)), 5),
    "rnn relu": lambda: Sequence(First(nn.RNN(8, 5, nonlinearity="relu", batch_first=True)), 5),
    "learned initial state": lambda: Sequence(Stateful(), 5),
    "initial state from data": lambda: Sequence(FromData(), 5),
    "packed gru": lambda: Sequence(Packed(), 10),
    "packed lstm both ways": lambda: Sequence(Packed(nn.LSTM, bidirectional=True), 15),
    "gru cells": lambda: Sequence(Cells(nn.GRUCell), 5),
    "lstm cells": lambda: Sequence(Cells(nn.LSTMCell), 5),
    "rnn cells": lambda: Sequence(Cells(nn.RNNCell), 5),
    "attention": lambda: Sequence(Attention()),
    "attention steps first": lambda: Sequence(Attention(batch_first=False)),
    "causal attention": lambda: Sequence(Attention(causal=True)),
    "attention and its weights": lambda: Sequence(Weighted(average=True, causal=False)),
    "weights of each head": lambda: Sequence(Weighted(average=False, causal=True)),
    "cross attention": lambda: Sequence(Crossed()),
    "encoder layer": lambda: Sequence(encoder(norm_first=False)),
    "encoder layer, norm first": lambda: Sequence(encoder(norm_first=True)),
    "layer norm": lambda: Sequence(nn.LayerNorm(8)),
    "rms norm": lambda: Sequence(nn.RMSNorm(8)),
    "group norm": lambda: Sequence(Channels(nn.GroupNorm(2, 8))),
    "instance norm": lambda: Sequence(Channels(nn.InstanceNorm1d(8, affine=True))),
    "prelu": lambda: Sequence(nn.Sequential(nn.PReLU(), Channels(nn.PReLU(8)))),
    "conv": lambda: Sequence(Channels(nn.Conv1d(8, 6, 3, padding=1)), 6),
    "conv strided": lambda: Sequence(Channels(nn.Conv1d(8, 6, 3, stride=2)), 6),
    "conv causal dilated": lambda: Sequence(Channels(nn.Conv1d(8, 6, 2, dilation=2), (2, 0)), 6),
    "conv grouped": lambda: Sequence(Channels(nn.Conv1d(8, 8, 3, groups=4, padding="same"))),
    "conv depthwise": lambda: Sequence(Channels(nn.Conv1d(8, 16, 3, groups=8, padding=1)), 16),
    "positions": lambda: Sequence(Positions()),
    "raw positions": lambda: Sequence(Positions(raw=True)),
    "class token": lambda: Sequence(Token()),
    "shared": lambda: Sequence(Shared()),
    "low rank": lambda: Sequence(LowRank(merged=False)),
    "low rank, merged": lambda: Sequence(LowRank(merged=True)),
    "bias only": lambda: Sequence(BiasOnly()),
    "unreached": lambda: Sequence(Unreached()),
    "head first": lambda: Sequence(HeadFirst(), 8),
    "spectral norm, held": lambda: Sequence(
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    ).eval(),
    "weight norm": lambda: Sequence(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
}
