"""Reads that fail once: no lane may be forgotten because of it, even if nothing else ever happens to it."""

from typing import Any

import pytest
from tenacity import wait_fixed

import lanelog
from lanelog import Client
from lanelog._stores.log import fetches
from lanelog.errors import DatabaseError
from support.waiting import Record


@pytest.mark.thorough
@pytest.mark.parametrize("read", ["following", "exact"])
def test_a_read_that_failed_once_is_repeated(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """A lane whose rows could not be read stays wanted; a message that is due again (its flush committed) stays due."""
    real, failed, attempts = getattr(fetches, read), [], Record()

    def fails_once(*args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(read)
            raise DatabaseError("Lost connection to server during query", code=2013, retriable=True)
        return real(*args, **options)

    def handle(message: lanelog.Message) -> None:
        attempts(message.attempt)
        if message.attempt == 1:
            raise ValueError

    monkeypatch.setattr(fetches, read, fails_once)
    lanelog_client.publish("t", "k", "1")
    with lanelog_client.subscribe("t", "g", handle, retry=lanelog.RetryPolicy(wait=wait_fixed(0.3))):
        assert attempts.wait(2) == [1, 2]
    assert failed
