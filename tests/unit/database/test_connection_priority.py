"""Which loop may ask a server for a connection that has too few, and what the others are told."""

import logging
from types import SimpleNamespace

import pytest

from lanelog._database import codes
from lanelog._database.pool import connection_priority as precedence
from lanelog._database.pool.connection_priority import ORDER, ConnectionPriority
from lanelog.errors import DatabaseError
from support.waiting import events


def too_many(code: int) -> DatabaseError:
    return DatabaseError("too many", code=code, retriable=True)


def refuse(priority: ConnectionPriority, purpose: str, *, times: int) -> None:
    for _ in range(times):
        priority.refused(purpose, too_many(codes.ACCOUNT_HAS_TOO_MANY))


@pytest.mark.parametrize("purpose", ["fetcher", "janitor", "scheduler"])
def test_a_loop_that_can_wait_asks_less_and_less_often(purpose: str) -> None:
    """The loop gets the last refusal instead, and still counts as lacking. With a connection, it begins anew."""
    priority = ConnectionPriority()
    refuse(priority, purpose, times=1)
    assert priority.too_soon(purpose) is None  # an idle connection was closed for it meanwhile
    refuse(priority, purpose, times=30)
    waits = priority._refused[purpose].again_at - priority._refused[purpose].at
    assert 0.05 <= waits <= 4.0
    told = priority.too_soon(purpose)
    assert (str(told), told.code, told.retriable) == ("too many", codes.ACCOUNT_HAS_TOO_MANY, True)
    priority.connected(purpose)
    assert priority.too_soon(purpose) is None


@pytest.mark.parametrize("purpose", ["keeper", "settler", "publishing", "archive"])
def test_leases_outcomes_and_publishers_do_not_wait(purpose: str) -> None:
    """The back-off of these purposes is enough: a lane, a settlement or a caller waits for them."""
    priority = ConnectionPriority()
    refuse(priority, purpose, times=30)
    assert priority.too_soon(purpose) is None


@pytest.mark.parametrize("code", sorted(codes.TOO_MANY))
def test_who_gives_way_says_whose_limit_it_was(code: int) -> None:
    """The server's limit and an account's have different remedies."""
    priority = ConnectionPriority()
    priority.refused("keeper", too_many(code))
    given_up = priority.gave_way("janitor", priority.lacking("janitor"))
    assert given_up.code == code
    assert "keeper comes first" in str(given_up)
    assert ORDER.index("keeper") < ORDER.index("janitor")


def test_who_gives_way_to_a_publisher_again_and_again_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals of a publisher every 5.2 s: the loops that never ask because of them lack a connection all the same."""
    now = [0.0]
    monkeypatch.setattr(precedence, "time", SimpleNamespace(monotonic=lambda: now[0]))
    priority = ConnectionPriority()
    for began in (0.0, 5.2, 10.4):
        now[0] = began
        refuse(priority, "publishing", times=1)
        for _ in range(2):
            now[0] += 2.0
            for loop in ("janitor", "scheduler"):
                priority.gave_way(loop, priority.lacking(loop))
    (said,) = events(caplog, "connections.missing", logging.ERROR)
    assert "without=[publishing,janitor,scheduler]" in said
