"""The public surface, pinned: a name or parameter that disappears breaks somebody's service."""

import inspect
from collections.abc import Callable

import pytest

import lanelog
import lanelog.admin
from lanelog.admin import views

NAMES = {
    "AckPolicy", "AlreadySettled", "Client", "ClosedError", "Codec", "ConfigurationError", "DatabaseError",
    "DeadLetter", "Deliveries", "LanelogError", "LeaseLost", "Message", "Order", "Outgoing",
    "PayloadTooLarge", "Postpone", "Receipt", "Reject", "Retry", "RetryPolicy", "SchemaError", "Subscription",
    "SubscriptionConfig", "SubscriptionState", "SubscriptionStats", "connect",
}  # fmt: skip

ADMIN_NAMES = {
    "Admin", "DeadLetterInfo", "DeadLetterReason", "Deleted", "Finding", "GroupDeleted", "GroupInfo", "GroupState",
    "HistoryInfo", "LaneInfo", "LeaseInfo", "Maintained", "MemberInfo", "MessageInfo", "MessageState", "OffsetInfo",
    "OwnerState", "Paused", "Purged", "Redriven", "Released", "Resumed", "ScheduledInfo", "Skipped", "Sought",
    "SoughtLane", "TopicDeleted", "TopicInfo", "ScheduleInfo", "SchedulePaused", "ScheduleRemoved", "ScheduleResumed",
}  # fmt: skip

SIGNATURES: list[tuple[Callable[..., object], list[str]]] = [
    (lanelog.connect, ["url", "options"]),
    (
        lanelog.Client.publish,
        ["self", "topic", "key", "payload", "id", "metadata", "codec", "connection", "delay", "deliver_at", "ttl"],
    ),
    (lanelog.Client.publish_many, ["self", "topic", "items", "codec", "connection"]),
    (lanelog.Client.cancel_scheduled, ["self", "topic", "key", "id"]),
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
    (lanelog.admin.Admin.topics, ["self", "limit"]),
    (lanelog.admin.Admin.topic, ["self", "topic"]),
    (lanelog.admin.Admin.groups, ["self", "topic"]),
    (lanelog.admin.Admin.members, ["self", "topic", "group"]),
    (lanelog.admin.Admin.lanes, ["self", "topic", "group", "order_by", "limit"]),
    (lanelog.admin.Admin.offsets, ["self", "topic", "group", "key", "limit"]),
    (lanelog.admin.Admin.leases, ["self", "topic", "group", "stale", "limit"]),
    (lanelog.admin.Admin.message, ["self", "topic", "key", "id", "offset"]),
    (lanelog.admin.Admin.messages, ["self", "topic", "key", "from_offset", "limit"]),
    (lanelog.admin.Admin.history, ["self", "topic", "group", "key", "limit"]),
    (lanelog.admin.Admin.scheduled, ["self", "topic", "key", "limit"]),
    (lanelog.admin.Admin.cancel_scheduled, ["self", "topic", "key", "id", "dry_run"]),
    (lanelog.admin.Admin.dead_letters, ["self", "topic", "group", "limit"]),
    (lanelog.admin.Admin.dead_letter_reasons, ["self", "topic", "group"]),
    (
        lanelog.admin.Admin.redrive,
        [
            *("self", "topic", "group", "ids", "reason", "all", "rate", "delay", "max_deliveries", "to_topic"),
            "dry_run",
        ],
    ),
    (lanelog.admin.Admin.delete_dead_letters, ["self", "topic", "group", "ids", "reason", "all", "dry_run"]),
    (lanelog.admin.Admin.seek, ["self", "topic", "group", "key", "to", "dry_run"]),
    (lanelog.admin.Admin.pause, ["self", "topic", "group", "key", "by", "reason", "dry_run"]),
    (lanelog.admin.Admin.resume, ["self", "topic", "group", "key", "dry_run"]),
    (lanelog.admin.Admin.skip, ["self", "topic", "group", "key", "offset", "reason", "dry_run"]),
    (lanelog.admin.Admin.release, ["self", "topic", "group", "key", "dry_run"]),
    (lanelog.admin.Admin.delete_group, ["self", "topic", "group", "dry_run"]),
    (lanelog.admin.Admin.purge, ["self", "topic", "before", "dry_run"]),
    (lanelog.admin.Admin.delete_topic, ["self", "topic", "dry_run"]),
    (
        lanelog.Client.schedule,
        ["self", "name", "expression", "topic", "key", "payload", "timezone", "catch_up", "metadata", "ttl", "codec"],
    ),
    (lanelog.admin.Admin.schedules, ["self", "limit"]),
    (lanelog.admin.Admin.preview_schedule, ["self", "expression", "timezone", "count", "after"]),
    (lanelog.admin.Admin.pause_schedule, ["self", "name", "by", "reason", "dry_run"]),
    (lanelog.admin.Admin.resume_schedule, ["self", "name", "dry_run"]),
    (lanelog.admin.Admin.remove_schedule, ["self", "name", "dry_run"]),
    (lanelog.admin.Admin.maintain, ["self", "topics"]),
    (lanelog.admin.Admin.doctor, ["self"]),
]


def test_the_public_names_are_these() -> None:
    """What `from lanelog import …` offers is exactly the documented surface."""
    assert set(lanelog.__all__) == NAMES
    assert all(hasattr(lanelog, name) for name in NAMES)


def test_the_public_names_of_administration_are_these() -> None:
    """What `from lanelog.admin import …` offers is exactly the facade and all its views."""
    assert set(lanelog.admin.__all__) == ADMIN_NAMES
    assert set(views.__all__) == ADMIN_NAMES - {"Admin"}
    assert isinstance(lanelog.Client.admin, property)


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
