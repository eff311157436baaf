"""What the tests of commands share."""

from __future__ import annotations

import pytest

from hwtune.domain import validity


@pytest.fixture(autouse=True)
def _patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine full of other work is late, and that is no matter of these tests.

    Their answers last some milliseconds, so that a single pause would make the gate "client on time"
    red. What the gate does is tested on records (tests/unit/test_compare.py).
    """
    monkeypatch.setattr(validity, "LATE_S", 60.0)
