"""The pure engine: a chunk of GRU clients side by side, gradients by hand.

All clients' matrices are stacked and multiplied in one batched product; the backward pass is
written out, because recording 64 steps for autograd costs more than computing them. Storage is
[client, step, window, feature], so that each weight gradient is one batched product over all
steps. Windows of a short last batch are filled up with windows of length 0 and weight 0: every
product then has the same shape for every client, so a result cannot depend on the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sequester.federated.engine.base import Job, Trained, Visits, visits
from sequester.federated.engine.recurrent import Cell, Laid
from sequester.federated.messages import Layout

# Activations of a chunk should stay in the last cache level; measured best from width 16 to 128.
CHUNK_BYTES = 16 << 20


@dataclass
class Stack:
    """Parameters of a chunk's clients, each with the client as first axis."""

    w_in: Tensor  # (clients, 3 hidden, features)
    w_hidden: Tensor  # (clients, 3 hidden, hidden)
    b_in: Tensor
    b_hidden: Tensor
    head: Tensor  # (clients, outputs, hidden)
    b_head: Tensor

    @classmethod
    def of(cls, flat: Tensor, layout: Layout) -> Stack:
        """Views of `flat (clients, size)`."""
        parts = [
            flat[:, start : start + size].view(len(flat), *shape)
            for start, size, shape in zip(
                layout.offsets[:-1], layout.sizes, layout.shapes, strict=True
            )
        ]
        return cls(*parts)


class BatchedEngine:
    """Stacked clients in plain PyTorch; needs no compiler."""

    name = "batched"

    def __init__(self, network: Cell, data: Laid, layout: Layout, *, chunk: int = 0) -> None:
        """Keep the clients' data.

        Args:
            network: What `recognise` found.
            data: The clients' windows.
            layout: Of the model.
            chunk: Clients at once; 0 chooses by cache. The result does not depend on it.
        """
        self.layout = layout
        self._network, self._chunk = network, chunk
        self._x = torch.from_numpy(data.x)
        self._lengths = torch.from_numpy(data.lengths).to(torch.int64)
        # Of all windows, not of a chunk's: products of one shape, whatever the chunk.
        self._steps = max(1, int(self._lengths.max())) if len(data.lengths) else 1
        self._target = torch.from_numpy(data.target)
        self._offsets = data.offsets

    def train(self, job: Job) -> Trained:
        """Train every client of the job, clients with many steps first."""
        plan = visits(job, self._offsets)
        steps = job.work.epochs * -(-plan.windows // job.work.batch)
        deltas = np.zeros((len(job.clients), self.layout.size), dtype=np.float32)
        by_length = np.argsort(-steps, kind="stable")
        chunk = self._chunk or self._choose_chunk(job.work.batch)
        for at in range(0, len(by_length), chunk):
            rows = by_length[at : at + chunk]
            rows = rows[steps[rows] > 0]
            if len(rows):
                deltas[rows] = self._train_chunk(job, plan, rows, steps[rows])
        return Trained(deltas, steps, plan.windows)

    def _choose_chunk(self, batch: int) -> int:
        per_client = 4 * self._x.shape[1] * batch * 12 * self._network.hidden
        return max(4, CHUNK_BYTES // per_client)

    def _train_chunk(
        self, job: Job, plan: Visits, rows: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        start = job.start if job.start.ndim == 1 else job.start[rows]
        begin = torch.from_numpy(np.ascontiguousarray(start)).expand(len(rows), -1)
        flat = begin.clone()
        correction = None if job.correction is None else torch.from_numpy(job.correction[rows])
        anchor = torch.from_numpy(job.anchor)
        work = job.work
        velocity = torch.zeros_like(flat) if work.momentum else None
        for step in range(int(steps[0])):
            active = int((steps > step).sum())
            gradient = self._gradients_of(
                flat[:active], self._windows_of(plan, rows[:active], step, work.batch)
            )
            if correction is not None:
                gradient += correction[:active]
            if work.proximal:
                gradient += work.proximal * (flat[:active] - anchor)
            if velocity is not None:
                gradient = velocity[:active].mul_(work.momentum).add_(gradient)
            flat[:active].sub_(gradient, alpha=work.learning_rate)
        delta: np.ndarray = (flat - begin).numpy()
        return delta

    def _windows_of(self, plan: Visits, rows: np.ndarray, step: int, batch: int) -> Tensor:
        """Positions of the windows of this step, `(clients, batch)`; −1 fills a short batch."""
        windows = plan.windows[rows]
        per_pass = -(-windows // batch)
        first = (step % per_pass) * batch
        place = first[:, None] + np.arange(batch)
        inside = place < windows[:, None]
        at = plan.offsets[rows][:, None] + (step // per_pass * windows)[:, None] + place
        return torch.from_numpy(np.where(inside, plan.order[np.where(inside, at, 0)], -1))

    def _gradients_of(self, flat: Tensor, windows: Tensor) -> Tensor:
        """Gradients of each client, `(clients, size)`."""
        clients = len(flat)
        if clients == 1:  # a product for one alone may take another path and round otherwise
            flat, windows = flat.repeat(2, 1), windows.repeat(2, 1)
        gradient = torch.empty(len(flat), self.layout.size)
        self._gradients(Stack.of(flat, self.layout), windows, gradient)
        return gradient[:clients]

    def _gradients(self, p: Stack, windows: Tensor, out: Tensor) -> None:
        """Gradient of the mean loss of each client's windows, written into `out`."""
        clients, batch = windows.shape
        real = windows >= 0
        safe = windows.clamp_min(0)
        lengths = torch.where(real, self._lengths[safe].clamp_min(1), 0)
        steps = self._steps
        x = self._x[safe, :steps].transpose(1, 2).contiguous()  # (clients, steps, batch, features)
        if not bool(real.all()):  # what fills up must not carry another client's NaN
            x.masked_fill_(~real[:, None, :, None], 0.0)
        # None where every window fills every step: the common case skips the masks.
        inside = (
            None
            if bool((lengths == steps).all())
            else (torch.arange(steps)[None, :, None] < lengths[:, None, :])[..., None]
        )
        states, gates = self._forward(p, x, inside)
        read, share = self._read(states, lengths, safe, inside)
        d_logits = self._head(p, read, windows, real)
        grads = Stack.of(out, self.layout)
        grads.head.copy_(torch.bmm(d_logits.transpose(1, 2), read))
        grads.b_head.copy_(d_logits.sum(1))
        d_read = torch.bmm(d_logits, p.head)
        each_step = self._each_step(d_read, share, inside, (clients, steps, batch))
        last = torch.zeros(clients, batch, self._network.hidden)
        if each_step is None:
            last = d_read
        d_hidden, d_in = self._backward(p, states, gates, last, each_step, inside)
        rows = steps * batch
        before = states[:, :steps].reshape(clients, rows, -1)
        grads.w_hidden.copy_(torch.bmm(d_hidden.view(clients, rows, -1).transpose(1, 2), before))
        grads.b_hidden.copy_(d_hidden.view(clients, rows, -1).sum(1))
        flat_x = x.view(clients, rows, -1)
        grads.w_in.copy_(torch.bmm(d_in.view(clients, rows, -1).transpose(1, 2), flat_x))
        grads.b_in.copy_(d_in.view(clients, rows, -1).sum(1))

    def _forward(
        self, p: Stack, x: Tensor, inside: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """States `(clients, steps + 1, batch, hidden)` and (r|z, n, hn) of each step."""
        clients, steps, batch, features = x.shape
        h = self._network.hidden
        given = torch.baddbmm(
            p.b_in[:, None], x.view(clients, steps * batch, features), p.w_in.transpose(1, 2)
        ).view(clients, steps, batch, 3 * h)
        states = torch.empty(clients, steps + 1, batch, h)
        both = torch.empty(clients, steps, batch, 2 * h)
        new, carried = torch.empty(2, clients, steps, batch, h)
        states[:, 0] = 0
        state = states[:, 0]
        weights, bias = p.w_hidden.transpose(1, 2), p.b_hidden[:, None]
        for t in range(steps):
            recurrent = torch.baddbmm(bias, state, weights)
            now = given[:, t]
            rz = recurrent[..., : 2 * h].add_(now[..., : 2 * h]).sigmoid_()
            both[:, t] = rz
            carried[:, t] = recurrent[..., 2 * h :]
            # Each product and sum rounds by itself: torch's fused forms (addcmul, lerp) round
            # differently at the end of a tensor, and the end moves with the chunk.
            n = torch.mul(rz[..., :h], recurrent[..., 2 * h :]).add_(now[..., 2 * h :]).tanh_()
            new[:, t] = n
            after = torch.sub(state, n).mul_(rz[..., h:]).add_(n)
            state = after if inside is None else torch.where(inside[:, t], after, state)
            states[:, t + 1] = state
        return states, (both, new, carried)

    def _read(
        self, states: Tensor, lengths: Tensor, windows: Tensor, inside: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What the head reads, `(clients, predictions, hidden)`; a step's share of a mean."""
        if self._network.pool == "last":
            return states[:, -1], None
        if self._network.pool == "none":
            return states[:, 1:].flatten(1, 2), None
        known = self._lengths[windows] > 0
        share = torch.where(known & (lengths > 0), 1.0 / lengths.clamp_min(1), 0.0)[..., None]
        after = states[:, 1:] if inside is None else states[:, 1:] * inside
        return after.sum(1) * share, share

    def _each_step(
        self,
        d_read: Tensor,
        share: Tensor | None,
        inside: Tensor | None,
        shape: tuple[int, int, int],
    ) -> Tensor | None:
        """Gradient of each state that comes from the head, `(clients, steps, batch, hidden)`."""
        if self._network.pool == "last":
            return None
        if share is None:
            return d_read.view(*shape, -1)
        spread = (d_read * share)[:, None].expand(-1, shape[1], -1, -1)
        return spread if inside is None else spread * inside

    def _head(self, p: Stack, read: Tensor, windows: Tensor, real: Tensor) -> Tensor:
        """Gradient of the losses with respect to logits, `(clients, predictions, outputs)`."""
        logits = torch.baddbmm(p.b_head[:, None], read, p.head.transpose(1, 2))
        target = self._target[windows.clamp_min(0)]
        known = target >= 0
        count = real.sum(1).clamp_min(1)[:, None].float()
        if self._network.pool == "none":  # targets come (clients, batch, steps): by step first
            target = target[..., : self._steps].transpose(1, 2)
            known = known[..., : self._steps].transpose(1, 2) & real[:, None]
            count = count[..., None] * known.sum(1, keepdim=True).clamp_min(1)
            count = count.expand(known.shape).reshape(len(real), -1)
            target, known = target.reshape(len(real), -1), known.reshape(len(real), -1)
        else:
            known = known & real
        if self._network.logistic:
            error = (0.5 * logits).tanh_().add_(1.0).mul_(0.5) - target[..., None]
        else:
            error = torch.softmax(logits, -1)
            error.scatter_add_(
                2, target.clamp_min(0).long()[..., None], -torch.ones(*target.shape, 1)
            )
        return torch.where(known[..., None], error / count[..., None], 0.0)

    def _backward(
        self,
        p: Stack,
        states: Tensor,
        gates: tuple[Tensor, Tensor, Tensor],
        dh: Tensor,
        each_step: Tensor | None,
        inside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of W_h h + b_h and of W_i x + b_i, `(clients, steps, batch, 3 h)`."""
        both, new, carried = gates
        h = self._network.hidden
        r, z = both[..., :h], both[..., h:]
        before = states[:, :-1]
        to_n = (1 - z) * (1 - new * new)
        factors = torch.cat(
            [to_n * carried * r * (1 - r), (before - new) * z * (1 - z), to_n * r], -1
        )
        if inside is not None:
            factors *= inside
            to_n *= inside
            z = torch.where(inside, z, 1.0)
        d_hidden = torch.empty_like(factors)
        d_in_n = torch.empty_like(to_n)
        shape = (*dh.shape[:2], 3, h)
        for t in range(states.shape[1] - 2, -1, -1):
            if each_step is not None:
                dh = dh + each_step[:, t]
            now = d_hidden[:, t]
            torch.mul(factors[:, t].view(shape), dh.unsqueeze(2), out=now.view(shape))
            torch.mul(dh, to_n[:, t], out=d_in_n[:, t])
            dh = torch.baddbmm(dh * z[:, t], now, p.w_hidden)
        d_in = torch.cat([d_hidden[..., : 2 * h], d_in_n], -1)
        return d_hidden, d_in
