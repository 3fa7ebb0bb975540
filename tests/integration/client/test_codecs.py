"""Payloads on their way: which codec encodes, and that bytes and content type stay together wherever they go."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError, Outgoing, PayloadTooLarge
from support.commands import commands_sent
from support.dead_letters import letters, refuse
from support.sql import rows
from support.waiting import eventually


class Marked:
    """A codec that differs from others by its mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.content_type = f"application/x-{mark}"

    def encode(self, value: Any, /) -> bytes:
        """The mark and JSON."""
        return f"{self.mark}{json.dumps(value)}".encode()

    def decode(self, payload: bytes) -> Any:
        """JSON behind the mark."""
        return json.loads(payload.removeprefix(self.mark.encode()))


@pytest.fixture
def coded(lanelog_client: Client, lanelog_url: str) -> Iterator[Client]:
    """A client with the codec `client`; the tables are there."""
    del lanelog_client
    with lanelog.connect(lanelog_url, codec=Marked("client")) as client:
        yield client


def stored(raw: Any, topic: str = "t") -> list[tuple[bytes, str | None]]:
    """Payloads and content types of a topic."""
    columns = """payload, JSON_UNQUOTE(JSON_EXTRACT(metadata, '$."content-type"'))"""
    where = "topic = %s ORDER BY partition_key, `offset`"
    return rows(raw, f"SELECT {columns} FROM queue_messages WHERE {where}", topic)


def test_the_nearest_codec_encodes(coded: Client, raw: Any) -> None:
    """The item's, then the call's, then the client's; bytes are left alone by all of them."""
    coded.publish("t", "a", {"n": 1}, metadata={"by": "ann"})
    coded.publish("t", "b", "text", codec=Marked("call"))
    items = [("c", 1), Outgoing("d", 1, codec=Marked("item")), ("e", b"raw"), Outgoing("f", b"x", codec=Marked("item"))]
    coded.publish_many("t", items, codec=Marked("call"))
    with coded.transaction() as connection:
        coded.publish("t", "g", [], connection=connection)
    assert stored(raw) == [
        (b'client{"n": 1}', "application/x-client"),
        (b'call"text"', "application/x-call"),
        (b"call1", "application/x-call"),
        (b"item1", "application/x-item"),
        (b"raw", "application/octet-stream"),
        (b"x", "application/octet-stream"),
        (b"client[]", "application/x-client"),
    ]


def test_what_was_published_comes_back(coded: Client, lanelog_client: Client) -> None:
    """Through whichever client: by the content type, and by the reader's codec where there is none."""
    lanelog_client.publish("t", "k", {"n": 1})
    lanelog_client.publish("t", "k", "text")
    lanelog_client.publish("t", "k", b"[1]")
    coded.publish("t", "k", [2])
    coded.publish("t", "k", b"raw")
    with coded.deliveries("t", "g", timeout=20.0) as deliveries:
        found = []
        for message in deliveries:
            found.append(message.decode())
            message.ack()
            if len(found) == 5:
                break
    assert found == [{"n": 1}, "text", [1], [2], b"raw"]
    with lanelog_client.deliveries("t", "h", timeout=20.0) as deliveries:
        for message, expected in zip(deliveries, [{"n": 1}, "text", b"[1]", None], strict=False):
            if expected is None:
                with pytest.raises(ConfigurationError, match="'application/x-client' and this client has no codec"):
                    message.decode()
            else:
                assert message.decode() == expected
            message.ack()
            if expected is None:
                break


def test_the_content_type_is_the_librarys(coded: Client, lanelog_client: Client) -> None:
    """In the metadata of what is encoded it is refused before any SQL, and it counts for their size."""
    given = {"content-type": "application/json"}
    with commands_sent() as sent:
        for client in (coded, lanelog_client):
            for payload in ("{}", {"a": 1}):
                with pytest.raises(ConfigurationError, match="metadata content-type is what lanelog writes"):
                    client.publish("t", "k", payload, metadata=given)
                with pytest.raises(ConfigurationError, match="metadata content-type"):
                    client.publish_many("t", [("k", b"x"), Outgoing("k", payload, metadata=given)])
        with pytest.raises(ConfigurationError, match="metadata content-type"):
            client.schedule("s", "0 0 1 1 *", "t", "k", {"a": 1}, metadata=given)
        with pytest.raises(PayloadTooLarge, match="metadata has"):
            client.publish("t", "k", {"a": 1}, metadata={"a": "x" * 65_520})
    assert sent == []


def test_a_message_is_forwarded_as_it_is(coded: Client, lanelog_client: Client, raw: Any) -> None:
    """Bytes may have a content type of the caller's: payload and metadata are all that another topic needs."""
    coded.publish("t", "k", {"n": 1}, metadata={"by": "ann"})
    for message in lanelog_client.deliveries("t", "g", timeout=20.0):
        lanelog_client.publish("other", message.key, message.payload, metadata=message.metadata)
        with pytest.raises(ConfigurationError, match=r"is a lanelog\.Message"):
            lanelog_client.publish("other", message.key, message)
        message.ack()
        break
    assert stored(raw, "other") == stored(raw, "t") == [(b'client{"n": 1}', "application/x-client")]


def test_dead_letters_and_redrive_keep_both(coded: Client, lanelog_client: Client, raw: Any) -> None:
    """A codec is asked once, when the message is published."""
    coded.publish("t", "k", {"n": 1})
    with lanelog_client.subscribe("t", "g", refuse):
        eventually(lambda: letters(raw) == 1)
    assert stored(raw, "t_dlq") == stored(raw)
    assert coded.admin.redrive("t", "g", all=True, dry_run=False).messages == 1
    assert stored(raw) == [(b'client{"n": 1}', "application/x-client")] * 2


def test_delayed_and_recurring_messages_keep_both(coded: Client, raw: Any) -> None:
    """Such messages wait as they will be stored, with the client's codec or the call's."""
    coded.publish("t", "k", {"n": 1}, delay=60.0)
    coded.schedule("s", "* * * * *", "t", "k", {"n": 2})
    coded.schedule("u", "* * * * *", "t", "k", {"n": 3}, codec=Marked("call"))
    found = rows(raw, "SELECT payload, metadata FROM queue_scheduled")
    found += rows(raw, "SELECT payload, metadata FROM queue_schedules ORDER BY name")
    assert [(payload, json.loads(metadata)) for payload, metadata in found] == [
        (b'client{"n": 1}', {"content-type": "application/x-client"}),
        (b'client{"n": 2}', {"content-type": "application/x-client"}),
        (b'call{"n": 3}', {"content-type": "application/x-call"}),
    ]
    (waiting,) = coded.admin.scheduled("t")
    assert waiting.metadata == {"content-type": "application/x-client"}
    rows(raw, "UPDATE queue_scheduled SET deliver_at = published_at")
    for message in coded.deliveries("t", "g", timeout=20.0):
        assert message.decode() == {"n": 1}
        message.ack()
        break
