"""When the server was started, as a new session learns it: whole seconds of uptime, asked beside the clock."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from lanelog._database import Database
from lanelog._database import session as module
from lanelog._database.wire import Wire

STALL = 3.0


def test_a_stall_while_asking_does_not_shift_the_start_of_the_server(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause of three seconds between uptime and clock would look like another start: it is asked again."""
    reference = database.session("reference")
    reference.ensure()
    stalled, pause, one = threading.Event(), threading.Event(), Wire.one

    def slow(self: Wire, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        answer = one(self, sql, args)
        if sql == module._UPTIME and not stalled.is_set():
            stalled.set()
            pause.wait(STALL)
        return answer

    monkeypatch.setattr(Wire, "one", slow)
    session = database.session("stalled")
    try:
        session.ensure()
        assert stalled.is_set()
        assert abs(session.server_started_ms - reference.server_started_ms) <= 2000
    finally:
        session.close()
        reference.close()
