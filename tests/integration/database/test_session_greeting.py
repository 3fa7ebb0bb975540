"""When the server was started, as a new session learns it: whole seconds of uptime, asked beside the clock."""

from collections.abc import Sequence
from typing import Any

import pytest

from lanelog._database import Database
from lanelog._database.connection.wire import Wire
from lanelog._database.server import incarnation as module

STALL_MS = 3000


def test_a_stall_while_asking_does_not_shift_the_start_of_the_server(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause of three seconds between uptime and clock would look like another start: it is asked again."""
    reference, session = database.session("reference"), database.session("stalled")
    reference.ensure()
    asked: list[str] = []
    one = Wire.one

    def stalled_once(self: Wire, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        answer = one(self, sql, args)
        asked.append(sql)
        late = sql == module._NOW and asked.count(module._UPTIME) == 1
        return (answer[0] + STALL_MS,) if late and answer else answer

    monkeypatch.setattr(Wire, "one", stalled_once)
    try:
        session.ensure()
        assert asked.count(module._UPTIME) == 2
        assert session.incarnation.same(reference.incarnation)
    finally:
        session.close()
        reference.close()
