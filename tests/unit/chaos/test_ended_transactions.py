"""Where the proxy of a chaos run ends a transaction, and where it never does."""

import random

import pytest

from chaos.unseen import HEADER, ROLLBACK, Unseen

STATEMENT = b"\x09\x00\x00\x00\x03SELECT 1"
DONE = b"\x07\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"


class Always(random.Random):
    """Dice that end every transaction."""

    def random(self) -> float:
        """The least chance."""
        return 0.0


def asked(link: Unseen, data: bytes = STATEMENT) -> bytes:
    link.told()
    return link.asked(data, Always())


def test_a_statement_waits_for_the_answer_to_the_rollback_before_it() -> None:
    """The client sees nothing of that answer, in however many pieces it comes."""
    link = Unseen()
    assert asked(link) == ROLLBACK
    assert link.busy
    for end in range(len(DONE) - 1):
        assert link.answered(DONE[end : end + 1]) == b""
    assert link.answered(DONE[-1:]) == STATEMENT
    assert not link.busy


def test_nothing_is_sent_within_a_request_or_before_a_session_has_begun() -> None:
    """The rest of a long request, what a client says to log in, and other commands go through as they are."""
    link = Unseen()
    assert link.asked(STATEMENT, Always()) == STATEMENT
    assert asked(link, b"\x09\x00\x00\x01\x03password") == b"\x09\x00\x00\x01\x03password"
    ping = b"\x01\x00\x00\x00\x0e"
    assert asked(link, ping) == ping
    assert asked(link, STATEMENT[:HEADER]) == STATEMENT[:HEADER]
    assert link.asked(STATEMENT, Always()) == STATEMENT
    link.told()
    assert link.asked(STATEMENT, None) == STATEMENT
    assert not link.busy


def test_a_server_that_refuses_the_rollback_costs_the_connection() -> None:
    """The next answer would belong to no statement."""
    link = Unseen()
    asked(link)
    with pytest.raises(ConnectionError):
        link.answered(b"\x03\x00\x00\x01\xff\x86\x04")
