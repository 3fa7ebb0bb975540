"""The public surface, pinned: a name or parameter that disappears breaks somebody's service."""

import inspect
from operator import attrgetter

import pytest

import lanelog
import lanelog.admin

NAMES = {
    "AckPolicy", "AlreadySettled", "Batch", "Client", "ClosedError", "Codec", "ConfigurationError", "ConnectOptions",
    "DatabaseError", "DeadLetter", "Deliveries", "LanelogError", "LeaseLost", "Message", "Messages", "Order",
    "Outgoing",
    "PayloadTooLarge", "Postpone", "Publication", "Receipt", "Reject", "Retry", "RetryPolicy", "SchemaError",
    "Subscription", "SubscriptionConfig", "SubscriptionOptions", "SubscriptionState", "SubscriptionStats", "connect",
}  # fmt: skip

ADMIN_NAMES = {
    "Admin", "AuditInfo", "Contradiction", "DeadLetterCounts", "DeadLetterInfo", "DeadLetterPage", "DeadLetterReason",
    "Deleted", "Figures", "Finding",
    "GroupDeleted", "GroupFigures", "GroupInfo", "GroupState",
    "HistoryInfo", "LaneInfo", "LastMember", "LeaseInfo", "Maintained", "MemberInfo", "MessageInfo", "MessageState",
    "OffsetInfo", "OpenAck",
    "OpenLanes", "OwnerState", "Paused", "Problem", "Purged", "Rank", "Redriven", "Released", "Resumed", "Retried",
    "RunningHandler", "Workload",
    "ScheduledInfo", "Skipped", "Sought", "SoughtLane", "Status", "TopicDeleted", "TopicInfo", "ScheduleInfo",
    "SchedulePaused", "ScheduleRemoved", "ScheduleResumed", "ScheduleRun", "ServerFigures",
    "TableSize",
}  # fmt: skip

SIGNATURES = """
connect: url options
Client.publish: topic key payload id metadata codec connection delay deliver_at ttl
Client.publish_many: topic items codec connection
Client.cancel_scheduled: topic key id
Client.transaction:
Client.subscribe: topic group handler options
Client.subscriber: topic group options
Client.deliveries: topic group timeout options
Client.on: name call
Client.health:
Client.run: drain_timeout health workers
Client.close: timeout
Subscription.stop: timeout
Message.nack: delay reason
Message.reject: reason
Message.postpone: delay
Message.extend: seconds
Message.transaction:
Admin.status: topics since
Admin.lag: topic group
Admin.tail: topic key lines follow interval
Admin.topics: limit
Admin.topic: topic
Admin.now:
Admin.topic_names: beginning limit
Admin.group_names: topic beginning limit
Admin.key_names: topic beginning limit
Admin.groups: topic group limit
Admin.members: topic group limit after
Admin.lanes: topic group order_by limit after before
Admin.lane: topic group key
Admin.server:
Admin.offsets: topic group key limit
Admin.leases: topic group stale limit
Admin.keys_of: topic id limit
Admin.message: topic key id offset
Admin.messages: topic key from_offset limit
Admin.acting: by reason
Admin.audit: topic limit
Admin.history: topic group key offset id outcome since until limit
Admin.scheduled: topic key limit
Admin.scheduled_counts:
Admin.cancel_scheduled: topic key id dry_run
Admin.dead_letters: topic group reason key_prefix after limit
Admin.dead_letter_page: topic group reason key_prefix after limit most
Admin.dead_letter_reasons: topic group
Admin.count_dead_letters: topic group most
Admin.redrive: topic group ids reason all key since limit rate delay ttl max_deliveries to_topic progress dry_run
Admin.delete_dead_letters: topic group ids reason all key since limit progress dry_run
Admin.seek: topic group key to dry_run
Admin.pause: topic group key by reason dry_run
Admin.resume: topic group key dry_run
Admin.skip: topic group key offset reason dry_run
Admin.retry: topic group key offset dry_run
Admin.release: topic group key dry_run
Admin.open_lanes: topic
Admin.set_open_lanes: topic lanes dry_run
Admin.delete_group: topic group evict dry_run
Admin.purge: topic before dry_run
Admin.delete_topic: topic dry_run
Client.schedule: name expression topic key payload timezone catch_up metadata ttl codec
Admin.schedules: limit
Admin.preview_schedule: expression timezone count after
Admin.pause_schedule: name by reason dry_run
Admin.resume_schedule: name dry_run
Admin.run_schedule: name token dry_run
Admin.remove_schedule: name dry_run
Admin.maintain: topics
Admin.contradictions: limit heads
Admin.doctor: repair
"""


def test_the_public_names_are_these() -> None:
    """`from lanelog import …` offers exactly the documented surface."""
    assert set(lanelog.__all__) == NAMES
    assert all(hasattr(lanelog, name) for name in NAMES)


def test_the_public_names_of_administration_are_these() -> None:
    """`from lanelog.admin import …` offers exactly the facade and all its values."""
    assert set(lanelog.admin.__all__) == ADMIN_NAMES
    assert all(hasattr(lanelog.admin, name) for name in ADMIN_NAMES)
    assert isinstance(lanelog.Client.admin, property)


@pytest.mark.parametrize("signature", SIGNATURES.strip().splitlines())
def test_the_parameters_keep_their_names(signature: str) -> None:
    """Calls by keyword keep working."""
    name, _, parameters = signature.partition(":")
    function = attrgetter(name)(lanelog.admin if name.startswith("Admin.") else lanelog)
    assert [each for each in inspect.signature(function).parameters if each != "self"] == parameters.split()


@pytest.mark.parametrize(
    "verb",
    ["delete_dead_letters", "delete_group", "delete_topic", "purge", "redrive", "release", "retry", "seek", "skip"],
)
def test_what_destroys_or_delivers_again_is_decided_by_the_caller(verb: str) -> None:
    """Such a verb has no default for `dry_run`, and takes it by its name alone."""
    dry_run = inspect.signature(getattr(lanelog.admin.Admin, verb)).parameters["dry_run"]
    assert dry_run.default is inspect.Parameter.empty
    assert dry_run.kind is inspect.Parameter.KEYWORD_ONLY


def test_every_error_is_in_one_tree() -> None:
    """One `except LanelogError` catches whatever the library raises, and swallows no decision of a handler."""
    errors = [getattr(lanelog, name) for name in NAMES if inspect.isclass(getattr(lanelog, name))]
    for error in errors:
        if issubclass(error, Exception):
            control_flow = error in (lanelog.Reject, lanelog.Retry, lanelog.Postpone)
            assert issubclass(error, lanelog.LanelogError) is not control_flow
