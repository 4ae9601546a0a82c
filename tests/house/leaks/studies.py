"""Studies on the canaries, small enough to run many of them."""

from pathlib import Path

BASE = """
name = "{name}"
[data]
source = "{source}"
population = 900
window = 4
stride = 4
group = "site"
{data}
[data.features.reading]
lower = 0.0
upper = 2.0
[data.features.second]
lower = 0.0
upper = 2.0
{features}
[model]
kind = "gru"
[model.options]
hidden = 4
[privacy]
noise_multiplier = 2.0
{privacy}
[training]
steps = {steps}
sampling_rate = {rate}
[ledger]
url = "sqlite:///{ledger}"
budget = "{budget}"
{rest}
"""


def write_study(path: Path, **changes: object) -> Path:
    """A study file; a part that is not given is left out."""
    parts = {
        "name": path.stem,
        "source": path.parent / "people.csv",
        "ledger": path.parent / "budget.db",
        "budget": "clinic",
        "data": "",
        "features": "",
        "privacy": "",
        "steps": 2,
        "rate": 0.1,
        "rest": "",
    }
    path.write_text(BASE.format(**{**parts, **changes}))
    return path
