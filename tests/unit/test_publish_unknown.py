"""What group commit says of a message whose first batch may have been committed, when a later batch fails for sure."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from lanelog.errors import DatabaseError
from lanelog.publisher.draft import Draft, make_draft
from lanelog.publisher.group import GroupCommit
from lanelog.publisher.line import Line, Member


class Refusing:
    """A writer that finds no database."""

    def commit(self, *_: object, **__: object) -> set[str]:
        raise DatabaseError("no connection", code=2003, retriable=True)


@pytest.fixture
def group() -> GroupCommit:
    database: Any = SimpleNamespace(config=SimpleNamespace(publish_timeout=30.0), reached=True)
    writer: Any = Refusing()
    gate: Any = None
    return GroupCommit(database, writer, gate)


@pytest.fixture
def draft() -> Draft:
    """A message that got offset 7 in a batch whose COMMIT was never answered."""
    made = make_draft("t", "k", b"", message_id="a", metadata=None, codec=None, max_payload_bytes=10)
    made.repeated, made.tried = True, 7
    return made


def test_a_message_put_back_after_an_unknown_commit_stays_unknown(group: GroupCommit, draft: Draft) -> None:
    """Its batch's time was up, its own was not; when that runs out as well, nobody knows whether it is in the log."""
    now = time.monotonic()
    line, member = Line(), Member(draft, now + 60, claimed=True)
    lost = DatabaseError("lost at COMMIT", code=2013, retriable=True, outcome_unknown=True)
    group._failed(line, "t", [member], now, lost)
    assert list(line.ready) == [member]
    assert group._expired(member).outcome_unknown
    draft.tried = None
    assert not group._expired(member).outcome_unknown


def test_a_sure_failure_after_an_unknown_commit_is_unknown(group: GroupCommit, draft: Draft) -> None:
    """That the second batch met no database says nothing of the first."""
    with pytest.raises(DatabaseError) as caught:
        group.publish(draft)
    assert caught.value.outcome_unknown
    draft.tried = None
    with pytest.raises(DatabaseError) as caught:
        group.publish(draft)
    assert not caught.value.outcome_unknown
