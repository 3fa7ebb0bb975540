"""The columns of messages, states, dead letters, history and schedules, and of the answers of `doctor` and `replay`.

Owns their heads, ranks and colours. They show no id, because an id is as long as a line; `show` and `--json` have it.
An exception is a message that is not due yet: it has no offset.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from lanelog._base.text import moment, payload
from lanelog._views.column import Tone, count, error, name, seconds, text, time, when, word
from lanelog.admin import MessageState
from lanelog.message import utc_from_ms

if TYPE_CHECKING:
    from lanelog.admin import GroupState

MESSAGES = (
    count("OFFSET", "offset"),
    time("PUBLISHED", "published_at", rank=1),
    count("BYTES", "payload_bytes", rank=2),
    text("PAYLOAD", lambda each: payload(each.payload)),
)


def _state_tone(state: GroupState) -> Tone | None:
    if state.state in {MessageState.FAILED, MessageState.EXPIRED}:
        return Tone.BAD
    return Tone.WARN if state.paused or state.state is MessageState.RETRYABLE else None


STATES = (
    name("GROUP", "group"),
    word("STATE", lambda each: f"{each.state}, paused" if each.paused else str(each.state), tone=_state_tone),
    count("ATTEMPTS", "attempts", rank=1),
    seconds("NEXT-IN", "next_attempt_in", rank=3),
    count("POSTPONED", "postponed", rank=6),
    time("LAST-ATTEMPT", "last_attempt_at", rank=4),
    name("OWNER", "owner", rank=5),
    error("ERROR", "last_error", rank=2, tone=_state_tone),
)

DEAD_LETTERS = (
    name("TOPIC", "dead_letter_topic", rank=5),
    name("KEY", "key"),
    count("OFFSET", "offset"),
    name("GROUP", "group", rank=3),
    count("ORIGINAL-OFFSET", "original_offset", rank=6),
    count("ATTEMPTS", "failure_count", rank=4),
    time("FAILED", "failed_at", rank=2),
    text("REASON", "reason", rank=1),
)

REASONS = (
    name("TOPIC", "dead_letter_topic", rank=4),
    name("GROUP", "group", rank=1),
    count("COUNT", "count", tone=lambda _row: Tone.BAD),
    count("KEYS", "keys", rank=2),
    time("FIRST-FAILED", "oldest_failed_at", rank=5),
    time("LAST-FAILED", "newest_failed_at", rank=3),
    name("NAME", "name", least=9),
    text("REASON", "reason"),
)

_OUTCOME_TONES = {"success": None, "skipped": Tone.WARN}


def _outcome_tone(row: Any) -> Tone | None:
    return _OUTCOME_TONES.get(row.outcome, Tone.BAD)


HISTORY = (
    name("KEY", "key"),
    count("OFFSET", "offset"),
    word("OUTCOME", "outcome", tone=_outcome_tone),
    count("ATTEMPTS", "attempts", rank=2, tone=when(lambda each: each.attempts > 1, Tone.WARN)),
    time("PUBLISHED", "published_at", rank=5),
    time("DELIVERED", "first_delivered_at", rank=6),
    time("FINISHED", "finished_at", rank=1),
    name("OWNER", "owner", rank=4),
    error("ERROR", "error", rank=3, tone=_outcome_tone),
)

SCHEDULED = (
    name("KEY", "key"),
    name("ID", "id"),
    time("DUE", "deliver_at"),
    seconds("TTL", "ttl", rank=2),
    time("PUBLISHED", "published_at", rank=1),
    count("BYTES", "payload_bytes", rank=3),
)

_paused = when(lambda each: each.paused_at, Tone.WARN)

SCHEDULES = (
    name("NAME", "name"),
    name("EXPRESSION", "expression", rank=1),
    name("TIMEZONE", "timezone", rank=7),
    name("TOPIC", "topic", rank=4),
    name("KEY", "key", rank=6),
    word("CATCH-UP", "catch_up", rank=9),
    count("FIRED", "fired", rank=5),
    time("LAST", "last_fire_at", rank=8),
    time("NEXT", "next_fire_at", rank=2),
    time("PAUSED", "paused_at", rank=3, tone=_paused),
    name("BY", lambda each: each.paused_by if each.paused_at else None, rank=10, tone=_paused),
    name("REASON", lambda each: each.pause_reason if each.paused_at else None, rank=11, tone=_paused),
)

PREVIEW = (
    word("TIME", lambda each: each.isoformat()),
    word("DAY", lambda each: f"{each:%a}"),
    word("UTC", lambda each: moment(each.astimezone(UTC))),
)

_STATUS_TONES = {"error": Tone.BAD, "warning": Tone.WARN, "ok": Tone.GOOD}


def status_tone(finding: Any) -> Tone | None:
    """Return the colour for the status of a finding of `doctor`."""
    return _STATUS_TONES.get(finding.status)


FINDINGS = (
    word("CHECK", "check"),
    word("STATUS", "status", tone=status_tone),
    text("FINDING", "detail", most=1000),
    text("REMEDY", "remedy", most=1000),
)

EVENTS_LISTED = (
    word("EVENT", "name"),
    word("LEVEL", "level", rank=3, tone=when(lambda each: each.level == "ERROR", Tone.BAD)),
    word("LOGGER", "logger", rank=4),
    name("SAYS", "says", least=40),
)

REPLAYED = (
    name("TO-TOPIC", lambda row: row["to_topic"]),
    count("MESSAGES", lambda row: row["messages"]),
    count("KEYS", lambda row: row["keys"], rank=1),
    count("BYTES", lambda row: row["bytes"], rank=2),
    time("FIRST", lambda row: utc_from_ms(row["first_ms"]), rank=3),
    time("LAST", lambda row: utc_from_ms(row["last_ms"]), rank=4),
)
