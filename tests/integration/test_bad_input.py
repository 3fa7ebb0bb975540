"""What an application or its administrator gets wrong: a clear error of the tree, before anything is written."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from lanelog import (
    AckPolicy,
    Client,
    ConfigurationError,
    LanelogError,
    Message,
    PayloadTooLarge,
)
from support.sql import one
from support.waiting import Record

TABLES = (
    "queue_partitions",
    "queue_messages",
    "queue_offsets",
    "queue_delivery_state",
    "queue_partition_leases",
    "queue_subscriber_heartbeats",
    "queue_groups",
    "queue_history",
    "queue_schedules",
)


def untouched(raw: Any) -> bool:
    """Whether no table has a row."""
    return not any(one(raw, f"SELECT COUNT(*) FROM {table}") for table in TABLES)


def handle(message: Message) -> None:
    """Do nothing."""


async def coroutine(message: Message) -> None:
    """Would never be awaited."""


def generator(message: Message) -> Iterator[None]:
    """Would never be run."""
    yield


BAD_NAMES = ["", " ", " a", "a ", "a\n", "\x00", "x" * 256, "\ud800", "a\u2003", None, 7, b"bytes", {"a": 1}]


def refused(call: Callable[[], object], error: type[LanelogError] = ConfigurationError, match: str = "") -> bool:
    """Whether exactly this error is raised; anything else passes through."""
    try:
        call()
    except error as raised:
        return match in str(raised)
    return False


def test_bad_names_are_refused_everywhere(lanelog_client: Client, raw: Any) -> None:
    """Over-long, blank, padded, unprintable, or no text at all."""
    calls: dict[str, Callable[[Any], object]] = {
        "publish topic": lambda name: lanelog_client.publish(name, "k", b"x"),
        "publish key": lambda name: lanelog_client.publish("t", name, b"x"),
        "publish id": lambda name: lanelog_client.publish("t", "k", b"x", id=name),
        "publish_many topic": lambda name: lanelog_client.publish_many(name, [("k", b"x")]),
        "publish_many key": lambda name: lanelog_client.publish_many("t", [("k", b"x"), (name, b"x")]),
        "subscribe topic": lambda name: lanelog_client.subscribe(name, "g", handle),
        "subscribe topics": lambda name: lanelog_client.subscribe(["t", name], "g", handle),
        "subscribe group": lambda name: lanelog_client.subscribe("t", name, handle),
        "subscriber group": lambda name: lanelog_client.subscriber("t", name)(handle),
        "deliveries group": lambda name: lanelog_client.deliveries("t", name),
    }
    taken = [
        (where, name)
        for where, call in calls.items()
        for name in BAD_NAMES
        if not (where == "publish id" and name is None)  # no id was given: one is made up
        and not refused(lambda call=call, name=name: call(name))  # type: ignore[misc]
    ]
    assert taken == []
    assert untouched(raw)


def test_names_at_their_limit_are_taken(lanelog_client: Client) -> None:
    """255 characters, of any alphabet, are a name; with a suffix they are too long for a subscription."""
    longest = "ж" * 255
    seen = Record()
    lanelog_client.publish("t", longest, b"x", id=longest)
    lanelog_client.subscribe("t", longest, lambda m: seen((m.key, m.id, m.group)))
    assert seen.wait(1) == [(longest, longest, longest)]
    with pytest.raises(ConfigurationError, match="suffix"):
        lanelog_client.subscribe("x" * 255, "g", handle)
    lanelog_client.subscribe("x" * 255, "g", handle, dead_letter_suffix=None)


BAD_OPTIONS: list[dict[str, Any]] = [
    {"worker": 8},
    {"workers": 0},
    {"workers": "8"},
    {"workers": True},
    {"order": "fifo"},
    {"order": "strict", "lane_concurrency": 4},
    {"lane_concurrency": 0, "order": "concurrent"},
    {"batch_size": -1},
    {"prefetch": 1.5},
    {"prefetch_bytes": None},
    {"poll_interval": 0},
    {"visibility_timeout": float("inf")},
    {"visibility_timeout": "60"},
    {"auto_extend": 1},
    {"max_handler_time": -3},
    {"lease_duration": 10, "lease_renewal": 10},
    {"retry": 5},
    {"max_deliveries": 0},
    {"ack_policy": "never"},
    {"ack_policy": AckPolicy},
    {"dead_letter_suffix": ""},
    {"on_dead_letter": "log"},
    {"start": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"start": "now"},
    {"retention": -1},
    {"retention": 1},
    {"middleware": "abc"},
    {"middleware": [7]},
    {"name": " "},
    {"name": "x" * 201},
]


def test_bad_options_are_refused_before_anything_is_written(lanelog_client: Client, raw: Any) -> None:
    """Each is named in the error, in all three ways to subscribe."""
    ways: list[Callable[..., object]] = [
        lambda **options: lanelog_client.subscribe("t", "g", handle, **options),
        lambda **options: lanelog_client.deliveries("t", "g", **options),
        lambda **options: lanelog_client.subscriber("t", "g", **options)(handle),
    ]
    taken = [
        options
        for options in BAD_OPTIONS
        for way in ways
        if not refused(lambda way=way, options=options: way(**options), match=next(iter(options)))  # type: ignore[misc]
    ]
    assert taken == []
    assert untouched(raw)


def test_bad_handlers_are_refused(lanelog_client: Client, raw: Any) -> None:
    """A coroutine or a generator would look handled without running."""
    for bad in (coroutine, generator, None, "handler", 7):
        with pytest.raises(ConfigurationError):
            lanelog_client.subscribe("t", "g", bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError):
            lanelog_client.subscriber("t", "g")(bad)  # type: ignore[type-var]
    assert untouched(raw)


def test_bad_payloads_are_refused(lanelog_client: Client, raw: Any) -> None:
    """What cannot come back equal is not stored; in publish_many it takes its good neighbours along."""
    for payload, error in (
        (b"x" * ((1 << 20) + 1), PayloadTooLarge),
        (object(), ConfigurationError),
        ({1, 2}, ConfigurationError),
        (float("nan"), ConfigurationError),
        ("\ud800", ConfigurationError),
        ({"a": object()}, ConfigurationError),
    ):
        with pytest.raises(error):
            lanelog_client.publish("t", "k", payload)
        with pytest.raises(error):
            lanelog_client.publish_many("t", [("k", b"good"), ("k", payload)])
    assert untouched(raw)


def test_an_autocommit_connection_is_refused(lanelog_client: Client, open_raw: Any, raw: Any) -> None:
    """Without a transaction the head's lock would end with each statement; nothing is written."""
    connection = open_raw(autocommit=True)
    with pytest.raises(ConfigurationError, match="transaction"):
        lanelog_client.publish("t", "k", b"x", connection=connection)
    with pytest.raises(ConfigurationError):
        lanelog_client.publish("t", "k", b"x", connection="a connection")
    assert one(raw, "SELECT COUNT(*) FROM queue_messages") == 0
