"""The pure engine for an LSTM: the recurrence of `batched.py` exchanged, everything else shared.

Gates in torch's order i, f, g, o:  c' = f c + i g,  h' = o tanh c'.  Source: Hochreiter and
Schmidhuber 1997 with the forget gate of Gers et al. 2000, in the form of torch.nn.LSTM.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sequester.federated.engine.batched import BatchedEngine, Stack

Gates = tuple[Tensor, Tensor, Tensor]


class BatchedLstm(BatchedEngine):
    """Stacked LSTM clients in plain PyTorch."""

    def _forward(self, p: Stack, x: Tensor, inside: Tensor | None) -> tuple[Tensor, Gates]:
        """States `(clients, steps + 1, batch, hidden)`, and gates, cells and tanh of cells."""
        clients, steps, batch, features = x.shape
        h = self._network.hidden
        given = torch.baddbmm(
            p.b_in[:, None], x.view(clients, steps * batch, features), p.w_in.transpose(1, 2)
        ).view(clients, steps, batch, 4 * h)
        states, cells = torch.zeros(2, clients, steps + 1, batch, h)
        gates = torch.empty(clients, steps, batch, 4 * h)
        squashed = torch.empty(clients, steps, batch, h)
        state, cell = states[:, 0], cells[:, 0]
        weights, bias = p.w_hidden.transpose(1, 2), p.b_hidden[:, None]
        for t in range(steps):
            raw = torch.baddbmm(bias, state, weights).add_(given[:, t])
            # Row by row, since slices cannot be joined: over a whole tensor the last few numbers
            # take a scalar path that rounds differently, and where they lie moves with the chunk.
            raw[..., : 2 * h].sigmoid_()
            raw[..., 2 * h : 3 * h].tanh_()
            raw[..., 3 * h :].sigmoid_()
            gates[:, t] = raw
            i, f, g, o = torch.split(gates[:, t], h, dim=-1)
            # Products and sums round one by one, as in the GRU: see there.
            after = torch.mul(f, cell).add_(torch.mul(i, g))
            squashed[:, t] = after.tanh()
            out = torch.mul(o, squashed[:, t])
            if inside is not None:  # past the window's end both stand still
                after = torch.where(inside[:, t], after, cell)
                out = torch.where(inside[:, t], out, state)
            state, cell = out, after
            states[:, t + 1], cells[:, t + 1] = state, cell
        return states, (gates, cells, squashed)

    def _backward(
        self,
        p: Stack,
        states: Tensor,
        gates: Gates,
        dh: Tensor,
        each_step: Tensor | None,
        inside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of both products, which are one: `(clients, steps, batch, 4 hidden)`."""
        act, cells, squashed = gates
        h = self._network.hidden
        through = torch.empty_like(act)
        dc = torch.zeros_like(dh)
        for t in range(states.shape[1] - 2, -1, -1):
            if each_step is not None:
                dh = dh + each_step[:, t]
            i, f, g, o = torch.split(act[:, t], h, dim=-1)
            tanh = squashed[:, t]
            own = dc + dh * o * (1 - tanh * tanh)
            now = torch.cat(
                [
                    own * g * (i * (1 - i)),
                    own * cells[:, t] * (f * (1 - f)),
                    own * i * (1 - g * g),
                    dh * tanh * (o * (1 - o)),
                ],
                -1,
            )
            carried, kept = torch.zeros_like(dh), own * f
            if inside is not None:
                now = now * inside[:, t]
                carried = torch.where(inside[:, t], 0.0, dh)
                kept = torch.where(inside[:, t], kept, dc)
            through[:, t] = now
            dh, dc = torch.baddbmm(carried, now, p.w_hidden), kept
        return through, through
