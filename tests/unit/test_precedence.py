"""Which loop may ask a server for a connection that has too few, and what the others are told."""

import logging
from types import SimpleNamespace

import pytest

from lanelog._database import codes, precedence
from lanelog._database.precedence import ORDER, Worth
from lanelog.errors import DatabaseError
from support.waiting import events


def too_many(code: int) -> DatabaseError:
    return DatabaseError("too many", code=code, retriable=True)


def refuse(worth: Worth, purpose: str, *, times: int) -> None:
    for _ in range(times):
        worth.refused(purpose, too_many(codes.ACCOUNT_HAS_TOO_MANY))


@pytest.mark.parametrize("purpose", ["fetcher", "janitor", "scheduler"])
def test_a_loop_that_can_wait_asks_less_and_less_often(purpose: str) -> None:
    """It is told the last refusal instead, and still counts as lacking. With a connection, it begins anew."""
    worth = Worth()
    refuse(worth, purpose, times=1)
    assert worth.too_soon(purpose) is None  # an idle connection was closed for it meanwhile
    refuse(worth, purpose, times=30)
    waits = worth._refused[purpose].again_at - worth._refused[purpose].at
    assert 0.05 <= waits <= 4.0
    told = worth.too_soon(purpose)
    assert told is not None
    assert (str(told), told.code, told.retriable) == ("too many", codes.ACCOUNT_HAS_TOO_MANY, True)
    worth.connected(purpose)
    assert worth.too_soon(purpose) is None


@pytest.mark.parametrize("purpose", ["keeper", "settler", "publishing", "archive"])
def test_leases_outcomes_and_publishers_do_not_wait(purpose: str) -> None:
    """Their own back-off is enough: a lane, a settlement or a caller waits for them."""
    worth = Worth()
    refuse(worth, purpose, times=30)
    assert worth.too_soon(purpose) is None


@pytest.mark.parametrize("code", sorted(codes.TOO_MANY))
def test_who_gives_way_says_whose_limit_it_was(code: int) -> None:
    """The server's limit and an account's have different remedies."""
    worth = Worth()
    worth.refused("keeper", too_many(code))
    given_up = worth.gave_way("janitor", worth.lacking("janitor"))
    assert given_up.code == code
    assert "keeper comes first" in str(given_up)
    assert ORDER.index("keeper") < ORDER.index("janitor")


def test_who_gives_way_to_a_publisher_again_and_again_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals of a publisher every 5.2 s: the loops that never ask because of them lack a connection all the same."""
    now = [0.0]
    monkeypatch.setattr(precedence, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worth = Worth()
    for began in (0.0, 5.2, 10.4):
        now[0] = began
        refuse(worth, "publishing", times=1)
        for _ in range(2):
            now[0] += 2.0
            for loop in ("janitor", "scheduler"):
                worth.gave_way(loop, worth.lacking(loop))
    (said,) = events(caplog, "connections.missing", logging.ERROR)
    assert "without=[publishing,janitor,scheduler]" in said
