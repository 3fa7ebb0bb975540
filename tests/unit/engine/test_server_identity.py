"""Which server new connections lead to: a failover, or two servers by turns."""

import logging

import pytest
from attrs import frozen

from lanelog._database import Incarnation
from lanelog._engine.server_identity import ServerIdentity
from support.waiting import events


@frozen
class Line:
    """A connection."""

    incarnation: Incarnation
    connected_at: float


ONE, OTHER = (Incarnation(0, name, name=f"{name}:3306") for name in ("one", "other"))


def identity(*servers: Incarnation, apart: float = 1.0) -> ServerIdentity:
    """Memory stands on the first server, and new connections lead to all of them, one after the other."""
    made = ServerIdentity()
    made.loaded(ONE, 0.0)
    for number, server in enumerate(servers, start=1):
        made.note(Line(server, number * apart))
    return made


def test_a_failover_leads_nobody_back(caplog: pytest.LogCaptureFixture) -> None:
    """A connection to the server before that was made earlier, and asks later, is none that leads back."""
    made = identity(ONE, ONE, OTHER, OTHER)
    made.note(Line(ONE, 1.5))
    assert not made.by_turns
    assert made.vouches(Line(OTHER, 9.0)) == 0
    assert made.suspect
    assert events(caplog, "servers.alternate") == []


def test_servers_that_answer_by_turns_are_both_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """The keeper is not asked to follow a connection to the one that it has not."""
    made = identity(ONE, OTHER, ONE, OTHER, ONE)
    assert made.by_turns
    (told,) = events(caplog, "servers.alternate", logging.WARNING)
    assert "one=other:3306 other=one:3306" in told
    assert made.vouches(Line(OTHER, 9.0)) == 0
    assert [made.strays(Line(server, 9.0)) for server in (OTHER, ONE)] == [True, False]
    assert not made.suspect


def test_a_failover_back_after_a_while_is_a_failover() -> None:
    """Each server had its time."""
    assert not identity(ONE, OTHER, ONE, apart=ServerIdentity().by_turns_seconds).by_turns
