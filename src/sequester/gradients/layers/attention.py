"""`nn.MultiheadAttention` and the recurrent cells, written out in functions the tape follows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.rules import rule
from sequester.gradients.tape import Tape

_NAMES = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias",
    "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
    "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v",
    "average_attn_weights", "is_causal",
)  # fmt: skip


@rule(F.multi_head_attention_forward)
def multi_head(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Project, attend within each window, project back."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    odd = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")
    if any(_given(given.get(name)) for name in odd) or given["query"].dim() != 3:
        raise tape.unsupported(
            "needs what the fast attention has not (bias_kv, add_zero_attn or unbatched input)"
        )
    with tape:
        return _attend(given)


def _given(value: Any) -> bool:
    return isinstance(value, Tensor) or bool(value)


def _attend(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    heads = given["num_heads"]
    q, k, v = _projected(given)
    steps, windows, width = q.shape
    keys = k.shape[0]

    def split(part: Tensor, length: int) -> Tensor:
        return part.reshape(length, windows, heads, width // heads).permute(1, 2, 0, 3)

    weights, drop = None, given.get("dropout_p", 0.0) if given.get("training", True) else 0.0
    if given.get("need_weights", True):
        # With weights asked for, the mask counts and `is_causal` is but a hint, as in PyTorch.
        mask = _mask({**given, "is_causal": False}, windows, heads)
        score = split(q, steps) @ split(k, keys).transpose(-2, -1) * (width // heads) ** -0.5
        weights = F.dropout((score if mask is None else score + mask).softmax(-1), drop)
        mixed = weights @ split(v, keys)
        weights = weights.mean(1) if given.get("average_attn_weights", True) else weights
    else:
        mask = _mask(given, windows, heads)
        causal = bool(given.get("is_causal")) and mask is None
        parts = split(q, steps), split(k, keys), split(v, keys)
        mixed = F.scaled_dot_product_attention(
            *parts, attn_mask=mask, dropout_p=drop, is_causal=causal
        )
    joined = mixed.permute(2, 0, 1, 3).reshape(steps, windows, width)
    return F.linear(joined, given["out_proj_weight"], given["out_proj_bias"]), weights


def _projected(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = given["query"], given["key"], given["value"]
    bias = given["in_proj_bias"]
    if given.get("use_separate_proj_weight"):
        weights = [given[f"{n}_proj_weight"] for n in "qkv"]
    elif q is k and k is v:
        a, b, c = F.linear(q, given["in_proj_weight"], bias).chunk(3, dim=-1)
        return a, b, c
    else:
        weights = list(given["in_proj_weight"].chunk(3))
    biases = bias.chunk(3) if bias is not None else (None, None, None)
    parts = [F.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]
    return parts[0], parts[1], parts[2]


def _mask(given: dict[str, Any], windows: int, heads: int) -> Tensor | None:
    """One additive mask, or None."""
    total: Tensor | None = None
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if mask is not None and not (given.get("is_causal") and padding is None):
        mask = _additive(mask, given["query"])
        total = mask if mask.dim() == 2 else mask.view(windows, heads, *mask.shape[1:])
    if padding is not None:
        hidden = _additive(padding, given["query"]).unsqueeze(1).unsqueeze(1)
        total = hidden if total is None else hidden + total
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
    return mask


@rule(torch.gru_cell, torch.lstm_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def cell(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One step of a recurrence, as the user's own loop calls it."""
    x, state, w_ih, w_hh, b_ih, b_hh = (*args, None, None)[:6]
    with tape:
        if func is torch.lstm_cell:
            h, c = state
            i, f, g, o = (F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh)).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            return o.sigmoid() * c.tanh(), c
        into, over = F.linear(x, w_ih, b_ih), F.linear(state, w_hh, b_hh)
        if func is not torch.gru_cell:
            return (into + over).tanh() if func is torch.rnn_tanh_cell else (into + over).relu()
        r, z, n = into.chunk(3, dim=-1)
        hr, hz, hn = over.chunk(3, dim=-1)
        update = (z + hz).sigmoid()
        fresh = (n + (r + hr).sigmoid() * hn).tanh()
        return fresh + update * (state - fresh)
