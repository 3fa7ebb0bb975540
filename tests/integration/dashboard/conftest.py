"""What the tests of the dashboard share."""

import pytest

from lanelog._base.duty_cycle import DutyCycle


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rest between reads. After a read of a second, as on a busy machine, the next one would come after twenty."""
    monkeypatch.setattr("lanelog.dashboard.shared_reads.CYCLE", DutyCycle(1))
