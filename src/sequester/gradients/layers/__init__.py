"""Layers that enter each person's gradient in the book; importing this registers them all."""

from sequester.gradients.layers import (
    attention,
    convolution,
    crossentropy,
    embedding,
    indexing,
    logits,
    normalisation,
    packing,
    products,
    recurrent,
    writing,
)

__all__ = [
    "attention",
    "convolution",
    "crossentropy",
    "embedding",
    "indexing",
    "logits",
    "normalisation",
    "packing",
    "products",
    "recurrent",
    "writing",
]
