"""Smaller updates: codecs with a byte-level wire form, and the error feedback they need.

What a codec loses in one round the client adds to its next update. Bytes are counted on what
really travels, header included.
"""

from sequester.federated.compression.codecs import Codec
from sequester.federated.compression.feedback import Feedback
from sequester.federated.compression.lowrank import LowRank
from sequester.federated.compression.quantise import Quantise
from sequester.federated.compression.sparse import RandomK, TopK

__all__ = [
    "Codec",
    "Feedback",
    "LowRank",
    "Quantise",
    "RandomK",
    "TopK",
]
