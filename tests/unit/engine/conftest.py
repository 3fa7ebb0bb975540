"""Every attempt of these tests makes the moves of the table only."""

from collections.abc import Iterator

import pytest

from support.memberships import Clock
from support.moves import Moves


@pytest.fixture(scope="package", autouse=True)
def moves() -> Iterator[Moves]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Moves.checked(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The hand of the clock that members read."""
    return Clock().drive(monkeypatch)
