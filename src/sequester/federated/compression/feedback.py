"""Error feedback: what a codec lost is added to the next update.

Source: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient
Compression Schemes" (2019), Algorithm 2:

    p_t = Δ_t + e_t,     send C(p_t),     e_{t+1} = p_t − C(p_t)

The residual belongs to the client and survives rounds in which it is not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sequester.federated.compression.codecs import Address, Codec
from sequester.federated.messages import Layout, Vector


@dataclass
class Feedback:
    """A codec with one residual for each client.

    Attributes:
        codec: What makes the bytes.
        layout: Of the vectors.
        residuals: e of each client that has sent; part of the client's state.
    """

    codec: Codec
    layout: Layout
    residuals: dict[int, Vector] = field(default_factory=dict)

    def encode(self, delta: Vector, address: Address) -> bytes:
        """The bytes of delta plus residual; the new residual is kept."""
        residual = self.residuals.get(address.client)
        owed = delta if residual is None else delta + residual
        data = self.codec.encode(owed, self.layout, address)
        self.residuals[address.client] = owed - self.codec.decode(data, self.layout, address)
        return data

    def decode(self, data: bytes, address: Address) -> Vector:
        """What the server sees."""
        return self.codec.decode(data, self.layout, address)
