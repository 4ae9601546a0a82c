"""What can go wrong below the ledger: a clear refusal, and an intact ledger."""

import pytest

from sequester.core.errors import UsageError
from sequester.ledger import Ledger


def test_bad_urls_are_refused() -> None:
    for bad in ("mysql://u:secret@h/db", "budget", "", "http://x"):
        with pytest.raises(UsageError, match=r"^SQ-300 ") as refusal:
            Ledger.open(bad)
        assert "secret" not in str(refusal.value)
