"""Mistakes that are easily made, and what each of them is told: one line, before anything is written."""

import socket
from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError, DatabaseError, Outgoing, SchemaError
from support.accounts import account
from support.sql import one
from support.waiting import accept


class Anything:
    """A codec that encodes whatever it is given."""

    def encode(self, value: object) -> bytes:
        return repr(value).encode()


@pytest.mark.parametrize("codec", [None, Anything()])
def test_none_is_no_payload(lanelog_client: Client, raw: Any, codec: Any) -> None:
    """By each way to publish, whatever the codec would make of it; the error says what to publish instead."""
    with lanelog_client.transaction() as connection:
        for publish in (
            lambda: lanelog_client.publish("t", "k", None, codec=codec),
            lambda: lanelog_client.publish("t", "k", None, codec=codec, connection=connection),
            lambda: lanelog_client.publish_many("t", [("k", b"1"), ("k", None)], codec=codec),
            lambda: lanelog_client.publish_many("t", [Outgoing("k", None, delay=5)], codec=codec),
            lambda: lanelog_client.schedule("s", "* * * * *", "t", "k", None, codec=codec),
        ):
            with pytest.raises(ConfigurationError, match='payload is None: publish b""'):
                publish()
    assert one(raw, "SELECT COUNT(*) FROM queue_partitions") == 0


def test_a_decorator_without_its_arguments(lanelog_client: Client) -> None:
    """The function would be the topic: the line to write is shown, with the function's name."""
    with pytest.raises(ConfigurationError, match=r'handler handle: write @client.subscriber\("topic", "group"\)'):

        @lanelog_client.subscriber  # type: ignore[call-arg, arg-type]
        def handle(message: lanelog.Message) -> None: ...


def test_a_closed_port() -> None:
    """Host and port are named, at the first call, and no password; it may be a restart, so the error is retriable."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, and nobody listens there
        port = taken.getsockname()[1]
        with lanelog.connect(f"mysql://u:geheim@127.0.0.1:{port}/d") as client, pytest.raises(DatabaseError) as caught:
            client.publish("t", "k", b"x")
    assert (caught.value.code, caught.value.retriable) == (2003, True)
    assert f"no connection to 127.0.0.1:{port}" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_missing_grant(lanelog_client: Client, lanelog_url: str, raw: Any) -> None:
    """The server's own words lead to the role, on either family: to insert, and to lock."""
    lanelog_client.publish("t", "k", b"x")
    for granted in ({"*": "SELECT"}, {"*": "SELECT", "queue_partitions": "INSERT, UPDATE"}):
        with (
            account(raw, lanelog_url, granted) as url,
            lanelog.connect(url, publish_timeout=5) as client,
            pytest.raises(DatabaseError) as caught,
        ):
            client.publish("t", "k", b"x")
        assert "`lanelog grants --role publisher`" in str(caught.value)


def test_missing_tables(empty_url: str) -> None:
    """Each call names the command and the method that make them."""
    with lanelog.connect(empty_url) as client:
        for call in (
            client.ping,
            client.admin.topics,
            lambda: client.publish("t", "k", b"x"),
            lambda: client.publish_many("t", [("k", b"x")]),
            lambda: client.subscribe("t", "g", accept),
            lambda: next(client.deliveries("t", "g", timeout=1.0)),
        ):
            with pytest.raises(SchemaError, match=r"client\.migrate\(\)") as caught:
                call()
            assert "lanelog migrate" in str(caught.value)
