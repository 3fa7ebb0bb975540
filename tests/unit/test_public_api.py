"""The public surface, pinned: a name or parameter that disappears breaks somebody's service."""

import inspect
from collections.abc import Callable

import pytest

import lanelog

NAMES = {
    "AckPolicy", "AlreadySettled", "Client", "ClosedError", "Codec", "ConfigurationError", "DatabaseError",
    "DeadLetter", "Deliveries", "LanelogError", "LeaseLost", "Message", "Order", "Outgoing",
    "PayloadTooLarge", "Postpone", "Receipt", "Reject", "Retry", "RetryPolicy", "SchemaError", "Subscription",
    "SubscriptionConfig", "SubscriptionState", "SubscriptionStats", "connect",
}  # fmt: skip

SIGNATURES: list[tuple[Callable[..., object], list[str]]] = [
    (lanelog.connect, ["url", "options"]),
    (lanelog.Client.publish, ["self", "topic", "key", "payload", "id", "metadata", "codec", "connection"]),
    (lanelog.Client.publish_many, ["self", "topic", "items", "codec", "connection"]),
    (lanelog.Client.transaction, ["self"]),
    (lanelog.Client.subscribe, ["self", "topic", "group", "handler", "options"]),
    (lanelog.Client.subscriber, ["self", "topic", "group", "options"]),
    (lanelog.Client.deliveries, ["self", "topic", "group", "timeout", "options"]),
    (lanelog.Client.close, ["self", "timeout"]),
    (lanelog.Subscription.stop, ["self", "timeout"]),
    (lanelog.Message.nack, ["self", "delay", "reason"]),
    (lanelog.Message.reject, ["self", "reason"]),
    (lanelog.Message.postpone, ["self", "delay"]),
    (lanelog.Message.extend, ["self", "seconds"]),
    (lanelog.Message.transaction, ["self"]),
]


def test_the_public_names_are_these() -> None:
    """What `from lanelog import …` offers is exactly the documented surface."""
    assert set(lanelog.__all__) == NAMES
    assert all(hasattr(lanelog, name) for name in NAMES)


@pytest.mark.parametrize(("function", "parameters"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_the_parameters_keep_their_names(function: Callable[..., object], parameters: list[str]) -> None:
    """Calls by keyword keep working."""
    assert list(inspect.signature(function).parameters) == parameters


def test_every_error_is_in_one_tree() -> None:
    """One `except LanelogError` catches whatever the library raises, and control flow is not among it."""
    errors = [getattr(lanelog, name) for name in NAMES if inspect.isclass(getattr(lanelog, name))]
    for error in errors:
        if issubclass(error, Exception):
            control_flow = error in (lanelog.Reject, lanelog.Retry, lanelog.Postpone)
            assert issubclass(error, lanelog.LanelogError) is not control_flow
