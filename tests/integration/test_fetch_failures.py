"""Reads that fail once: no lane may be forgotten because of it, even if nothing else ever happens to it."""

from typing import Any

import pytest
from tenacity import wait_fixed

import lanelog
from lanelog import Client
from lanelog._stores.fetches import Fetches
from lanelog.errors import DatabaseError
from support.waiting import Record, eventually


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Let the next read of this kind lose its answer; every other one is real."""
    real, failed = getattr(Fetches, name), []

    def read(*args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(name)
            raise DatabaseError("Lost connection to server during query", code=2013, retriable=True)
        return real(*args, **options)

    monkeypatch.setattr(Fetches, name, read)
    return failed


def test_a_lane_whose_rows_could_not_be_read_is_read_again(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane stays wanted when its fetch fails."""
    failed, record = fail_once(monkeypatch, "next"), Record()
    lanelog_client.publish("t", "k", "1")
    with lanelog_client.subscribe("t", "g", record):
        eventually(lambda: len(record) == 1)
    assert failed


def test_a_due_message_whose_body_could_not_be_read_is_read_again(
    lanelog_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed message that is due stays due when reading it again fails (its own flush is long committed by then)."""
    failed, record = fail_once(monkeypatch, "exact"), Record()

    def handle(message: lanelog.Message) -> None:
        record(message.attempt)
        if message.attempt == 1:
            raise ValueError

    lanelog_client.publish("t", "k", "1")
    with lanelog_client.subscribe("t", "g", handle, retry=lanelog.RetryPolicy(wait=wait_fixed(0.3))):
        eventually(lambda: record.items == [1, 2])
    assert failed
