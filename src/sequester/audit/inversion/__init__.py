"""Can somebody rebuild a client's windows from its update?

The attacker is a server that sees one client's update and knows the model. Results are computed
on windows of the auditor's own making, or stay private.
"""

from sequester.audit.inversion.closed import (
    first_linear,
    imprint,
    positions,
    prepare_imprint,
    refuse_prepared,
)
from sequester.audit.inversion.convolutions import receptive_field
from sequester.audit.inversion.optimise import Reconstruction, gradient_of, invert, quality
from sequester.audit.inversion.squares import invert_squares
from sequester.audit.inversion.survey import Protection, seen

__all__ = [
    "Protection",
    "Reconstruction",
    "first_linear",
    "gradient_of",
    "imprint",
    "invert",
    "invert_squares",
    "positions",
    "prepare_imprint",
    "quality",
    "receptive_field",
    "refuse_prepared",
    "seen",
]
