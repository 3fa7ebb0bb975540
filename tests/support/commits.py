"""COMMITs that go wrong, for code that is to repeat whole transactions."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from lanelog._database.connection.wire import Wire
from lanelog.errors import DatabaseError


@contextmanager
def every_commit_unanswered_once(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> Iterator[list[int]]:
    """In this thread every other COMMIT of a change gets no answer, after it was done or (not `committed`) before.

    Yields a list with 1 for every lost answer and 0 for the others.
    """
    me, lost, changed = threading.get_ident(), [0], set()
    really_run, really_commit = Wire._run, Wire.commit

    def run(wire: Wire, sql: str, args: Sequence[object]) -> Any:
        if sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE")):
            changed.add(wire)
        return really_run(wire, sql, args)

    def commit(wire: Wire) -> None:
        mine = threading.get_ident() == me and wire in changed
        changed.discard(wire)
        if mine:
            lost.append(1 - lost[-1])
        if not mine or not lost[-1]:
            return really_commit(wire)
        if committed:
            really_commit(wire)
        else:
            wire.rollback()
        wire.drop()
        raise DatabaseError("the answer to COMMIT was lost", code=2013, retriable=True, outcome_unknown=True)

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "_run", run)
        patch.setattr(Wire, "commit", commit)
        yield lost
