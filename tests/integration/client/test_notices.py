"""What a program is told by `client.on`, of a real engine."""

import time
from typing import Any, get_args

import pytest

import lanelog
from lanelog.notices import NAMES, Notice, NoticeName
from support.waiting import Gate, eventually, raising

TWICE = lanelog.RetryPolicy(max_attempts=2, wait=lambda _: 0.01)
Told = list[Notice]


@pytest.fixture
def told(lanelog_client: lanelog.Client) -> Told:
    """All notices that the program gets."""
    found: Told = []
    for name in get_args(NoticeName):
        lanelog_client.on(name, found.append)
    return found


def names(told: Told) -> list[tuple[Any, ...]]:
    return [(each.name, each.key, each.offset, each.attempt) for each in told]


def test_a_message_that_fails_is_notified_attempt_by_attempt(lanelog_client: lanelog.Client, told: Told) -> None:
    """In order, with the error that the log names, and without its payload."""

    def fail(message: lanelog.Message) -> None:
        raise ValueError("no such branch")

    lanelog_client.publish("t", "k", b"a secret")
    with lanelog_client.subscribe("t", "g", fail, retry=TWICE):
        eventually(lambda: len(told) == 2)
    assert names(told) == [("retried", "k", 1, 1), ("dead_lettered", "k", 1, 2)]
    assert {(each.topic, each.group, each.error) for each in told} == {("t", "g", "ValueError: no such branch")}
    assert "secret" not in repr(told)


def test_what_is_given_up_without_dead_letters_is_notified(lanelog_client: lanelog.Client, told: Told) -> None:
    """Dropped after an attempt, or expired before there was one."""
    lanelog_client.publish("t", "k", b"x")
    lanelog_client.publish("t", "old", b"x", ttl=0.001)
    with lanelog_client.subscribe("t", "g", raising(lanelog.Reject, "broken"), dead_letter_suffix=None):
        eventually(lambda: len(told) == 2)
    assert {each.name: (each.key, each.attempt) for each in told} == {"dropped": ("k", 1), "expired": ("old", 0)}


@pytest.mark.thorough
def test_a_message_that_expired_in_the_queue_of_a_worker_had_no_attempt(
    lanelog_client: lanelog.Client, told: Told
) -> None:
    """The notice says so, as the event and all other expired messages do, also where the message is dropped."""
    gate = Gate()
    lanelog_client.publish("t", "first", b"x")
    with lanelog_client.subscribe("t", "g", gate, workers=1, dead_letter_suffix=None), gate:
        gate.reached()
        lanelog_client.publish("t", "late", b"x", ttl=1.0)
        until = time.monotonic() + 1.1
        eventually(lambda: lanelog_client.measures().groups[0].running == 2)
        eventually(lambda: time.monotonic() > until)
        gate.open()
        eventually(lambda: told)
    assert names(told) == [("expired", "late", 1, 0)]


@pytest.mark.thorough
def test_what_an_operator_does_to_a_group_is_notified(lanelog_client: lanelog.Client, told: Told) -> None:
    """A pause, its end, and a lane that was taken from a handler."""
    gate = Gate()
    lanelog_client.publish("t", "k", b"x")
    with lanelog_client.subscribe("t", "g", gate), gate:
        gate.reached()
        lanelog_client.admin.release("t", "g", "k", dry_run=False)
        eventually(lambda: [each.key for each in told if each.name == "lease_lost"] == ["k"])
        lanelog_client.admin.pause("t", "g")
        eventually(lambda: "group_paused" in {each.name for each in told})
        lanelog_client.admin.resume("t", "g")
        eventually(lambda: "group_resumed" in {each.name for each in told})


@pytest.mark.thorough
def test_a_handler_that_takes_too_long_is_notified(lanelog_client: lanelog.Client, told: Told) -> None:
    """One notice says that the handler is slow, and one that its time is over."""
    gate = Gate()
    lanelog_client.publish("t", "k", b"x")
    options: lanelog.SubscriptionOptions = {"visibility_timeout": 0.2, "max_handler_time": 0.6}
    with lanelog_client.subscribe("t", "g", gate, **options), gate:
        eventually(lambda: {"handler_slow", "timed_out"} <= {each.name for each in told})
    first = {each.name: each for each in reversed(told)}
    assert {(first[name].key, first[name].offset) for name in ("handler_slow", "timed_out")} == {("k", 1)}


def test_a_subscription_that_fails_is_notified(lanelog_client: lanelog.Client, told: Told) -> None:
    """The notice has the reason: the group is gone."""
    subscription = lanelog_client.subscribe("t", "g", lambda _: None)
    lanelog_client.admin.delete_group("t", "g", evict=True, dry_run=False)
    (notice,) = eventually(lambda: [each for each in told if each.name == "subscription_failed"])
    assert (notice.topic, notice.group, notice.key) == ("t", "g", None)
    assert notice.error
    eventually(lambda: subscription.state == "failed")


def test_every_name_is_in_the_documentation() -> None:
    """The docstring of `Client.on` has every name that the type has."""
    documented = lanelog.Client.on.__doc__ or ""
    assert {name for name in NAMES if f'`"{name}"`' in documented} == NAMES
