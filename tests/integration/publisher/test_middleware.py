"""Middleware around every form of publish, on a real server."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve

import lanelog
from lanelog import Client, ConfigurationError, Outgoing, Publication
from support.sql import rows

Next = Callable[[Publication], Any]


@pytest.fixture
def client_with(lanelog_url: str) -> Iterator[Callable[..., Client]]:
    """Makes clients with middleware, on the migrated tables."""
    made: list[Client] = []

    def connect(*layers: Callable[..., object]) -> Client:
        made.append(lanelog.connect(lanelog_url, middleware=layers))
        return made[-1]

    yield connect
    for client in made:
        client.close()


def marked(publication: Publication, call_next: Next) -> Any:
    """Changes payload and metadata of each message."""
    messages = [
        evolve(m, payload=m.payload + b"!", metadata={**(m.metadata or {}), "by": "layer"})
        for m in publication.messages
    ]
    return call_next(evolve(publication, messages=messages))


def stored(raw: Any, table: str) -> list[tuple[bytes, str]]:
    """Payloads and the layer's mark."""
    found = rows(raw, f"SELECT payload, metadata FROM {table} ORDER BY payload")
    return [(payload, json.loads(metadata or "{}").get("by")) for payload, metadata in found]


def test_every_form_of_publish_passes_the_middleware(client_with: Callable[..., Client], raw: Any) -> None:
    """Single, batches, a caller's transaction, delay and schedule: all are stored as the layer changed them."""
    client = client_with(marked)
    assert client.publish("t", "a", b"1", metadata={"x": "y"}).offset == 1
    receipts = client.publish_many("t", [("a", b"2"), Outgoing("b", b"3", id="mine")])
    assert [(receipt.offset, receipt.key) for receipt in receipts] == [(2, "a"), (1, "b")]
    assert receipts[1].id == "mine"
    with client.transaction() as connection:
        client.publish("t", "a", b"4", connection=connection)
        client.publish_many("t", [("a", b"5")], connection=connection)
    client.publish("t", "a", b"6", delay=3600)
    assert client.schedule("nightly", "0 3 * * *", "t", "a", b"7").name == "nightly"
    assert stored(raw, "queue_messages") == [(b"%d!" % n, "layer") for n in range(1, 6)]
    assert stored(raw, "queue_scheduled") == [(b"6!", "layer")]
    assert stored(raw, "queue_schedules") == [(b"7!", "layer")]


def test_the_first_layer_is_outermost_and_sees_receipts(client_with: Callable[..., Client]) -> None:
    """Each layer sees one receipt for each message. A layer without a return loses nothing."""
    seen: list[object] = []

    def outer(publication: Publication, call_next: Next) -> None:
        seen.append(len(publication.messages))
        seen.append([receipt.offset for receipt in call_next(publication)])

    def inner(publication: Publication, call_next: Next) -> None:
        seen.append("inner")
        call_next(publication)

    client = client_with(outer, inner)
    assert [receipt.offset for receipt in client.publish_many("t", [("a", b"1"), ("a", b"2")])] == [1, 2]
    assert client.publish("t", "a", b"3").offset == 3
    assert seen == [2, "inner", [1, 2], 1, "inner", [3]]


def changing(**fields: Any) -> Callable[[Publication, Next], Any]:
    return lambda publication, call_next: call_next(evolve(publication, **fields))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda _, __: None, "without call_next"),
        (lambda _, call_next: call_next(None), "takes a lanelog.Publication"),
        (changing(topic="other"), "topic"),
        (changing(schedule="s"), "schedule"),
        (changing(messages=()), "number of messages"),
        (changing(messages=(("k", b"x"),)), "lanelog.Outgoing"),
        (changing(messages=(Outgoing("k", b"x", metadata={"a": 1}),)), "metadata must map"),  # type: ignore[dict-item]
        (changing(messages=(Outgoing("k", None),)), "payload is None"),
    ],
)
def test_a_bad_result_is_refused_before_anything_is_written(
    client_with: Callable[..., Client], raw: Any, layer: Callable[..., object], words: str
) -> None:
    """A layer's result is checked as a caller's own arguments are."""
    client = client_with(layer)
    with pytest.raises(ConfigurationError, match=words):
        client.publish("t", "k", b"1")
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(0,)]


def test_a_second_call_writes_nothing(client_with: Callable[..., Client], raw: Any) -> None:
    """A layer that repeats call_next would store the message twice, under two ids."""

    def twice(publication: Publication, call_next: Next) -> Any:
        call_next(publication)
        return call_next(publication)

    with pytest.raises(ConfigurationError, match="twice"):
        client_with(twice).publish("t", "k", b"1")
    assert rows(raw, "SELECT COUNT(*) FROM queue_messages") == [(1,)]


def test_a_hidden_error_reaches_the_publisher(client_with: Callable[..., Client]) -> None:
    """A layer that swallows the error of the write leaves no receipt, so the publish still fails."""

    def hiding(publication: Publication, call_next: Next) -> None:
        with pytest.raises(ConfigurationError):
            call_next(publication)

    with pytest.raises(ConfigurationError, match="hid the error"):
        client_with(hiding).publish("t", "k", None)


def test_middleware_is_checked_when_connecting() -> None:
    """A callable that cannot take publication and call_next is refused at once."""
    with pytest.raises(ConfigurationError, match="publication and call_next"):
        lanelog.connect("mysql://u@127.0.0.1/d", middleware=(lambda _: None,))  # type: ignore[arg-type, misc]
