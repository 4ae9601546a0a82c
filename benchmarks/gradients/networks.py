"""The networks in PyTorch, as anyone would write them."""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.gradients.workloads import PLACES


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 128, batch_first=True)
        self.fc = nn.Linear(128, 6)

    def forward(self, x):
        return self.fc(self.rnn(x)[0].mean(1))


class NextPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(PLACES, 64)
        self.rnn = nn.LSTM(64, 128, batch_first=True)
        self.fc = nn.Linear(128, PLACES)

    def forward(self, x):
        return self.fc(self.rnn(self.emb(x))[0])


class Block(nn.Module):
    def __init__(self, width=128, heads=4, wide=512):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.f1, self.f2 = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x):
        n, t, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(n, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(n, t, d))
        return x + self.f2(F.gelu(self.f1(self.ln2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(PLACES, 128), nn.Embedding(256, 128)
        self.blocks = nn.Sequential(Block(), Block())
        self.ln, self.fc = nn.LayerNorm(128), nn.Linear(128, PLACES)

    def forward(self, x):
        place = torch.arange(x.shape[1]).unsqueeze(0)
        return self.fc(self.ln(self.blocks(self.emb(x) + self.pos(place))))


def network(workload, seed=0):
    """The workload's network with small reproducible weights."""
    torch.manual_seed(seed)
    model = {"W1": Pooled, "W2": Transformer, "W3": NextPlace, "W4": Pooled}[workload[:2]]()
    g = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if ".ln" in name or name.startswith("ln"):
                p.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                size = 0.02 if p.dim() == 1 else 0.08 if "rnn" in name else 0.05
                p.copy_(torch.randn(p.shape, generator=g) * size)
    return model


def loss(model, lot):
    """Mean cross-entropy of each window's predictions."""
    logits = model(lot.x)
    if logits.dim() == 2:
        return F.cross_entropy(logits, lot.target, reduction="none")
    each = F.cross_entropy(logits.flatten(0, 1), lot.target.flatten(), reduction="none")
    return each.view(lot.target.shape).mean(1)
