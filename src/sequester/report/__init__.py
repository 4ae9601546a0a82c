"""From a run folder to what people read: the card. Reads JSON only; never a private file."""

from sequester.report.card import write_card

__all__ = ["write_card"]
