"""What a preview and a result say: sentences, and the way back.

Owns these words. Asks no database: each function is given the value that a method has returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any, Final

from lanelog._base.text import moment, plural, shown
from lanelog._views.sentences import would
from lanelog.admin import (
    Deleted,
    GroupDeleted,
    Paused,
    Redriven,
    Released,
    Resumed,
    Retried,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleRun,
    Skipped,
    Sought,
)
from lanelog.dashboard.changes.actions import button
from lanelog.dashboard.views import WebButton, WebCell, link, to_lane

_NAMED: Final = 5
"""Lanes and offsets that a sentence names. The rest is counted."""


@singledispatch
def sentences(result: Any) -> tuple[str, ...]:
    """Return what a method has changed, or with `dry_run` would change. A new method needs its words here."""
    raise TypeError(f"no words for {type(result).__name__}")


@sentences.register(Skipped)
def _skipped(it: Skipped) -> tuple[str, ...]:
    if not it.changed:
        return (f"Group {it.group} has settled message {it.offset} of lane {shown(it.key)} already: nothing to do.",)
    known = f"Its id is {shown(it.id)}; it was {it.state} after {plural(it.attempts, 'attempt')}."
    return _said(
        f"Message {it.offset} of lane {shown(it.key)} {_be(it)} settled for group {it.group} without being handled.",
        "The log does not hold it any more." if it.id is None else known,
        _owner_loses(it),
    )


@sentences.register(Retried)
def _retried(it: Retried) -> tuple[str, ...]:
    if not it.changed:
        return (f"Nothing in lane {shown(it.key)} waits for its next attempt: nothing to do.",)
    what = f"{plural(it.messages, 'message')} of lane {shown(it.key)}"
    which = _named([str(each) for each in it.offsets])
    return _said(f"{what} {_be(it, it.messages)} due at once: offset {which}.", _owner_loses(it))


@sentences.register(Released)
def _released(it: Released) -> tuple[str, ...]:
    if not it.changed:
        return (f"Lane {shown(it.key)} has no owner: nothing to do.",)
    lose = _does(it, "lose", "lost")
    return _said(
        f"{shown(it.owner)} ({it.owner_state}) {lose} lane {shown(it.key)}. Another member takes it.",
        f"It {lose} {plural(len(it.others), 'more lane')}, too: {_named(it.others)}." if it.others else "",
    )


@sentences.register(Paused)
def _paused(it: Paused) -> tuple[str, ...]:
    where = _where(it.group, it.key)
    if not it.changed:
        return (f"{where} has been paused since {moment(it.paused_at)}{_who(it.by, it.reason)}: nothing to do.",)
    waits = f"{plural(it.lag, 'message')} {'wait' if it.lag != 1 else 'waits'} until it is resumed"
    return (f"{where} {_does(it, 'be', 'is')} paused. {waits}.",)


@sentences.register(Resumed)
def _resumed(it: Resumed) -> tuple[str, ...]:
    where = _where(it.group, it.key)
    if not it.changed:
        return (f"{where} is not paused: nothing to do.",)
    return (
        f"{where} {_does(it, 'hand', 'hands')} out messages again.",
        f"It was paused since {moment(it.paused_at)}{_who(it.by, it.reason)}.",
    )


@sentences.register(Sought)
def _sought(it: Sought) -> tuple[str, ...]:
    rest, scattered = len(it.moved) - _NAMED, it.key is None and len(it.moved) > 1
    return _said(
        f"{plural(it.lanes, 'lane')} of group {it.group} {_be(it, it.lanes)} set to {it.to}.",
        f"{plural(it.again, 'settled message')} {_be(it, it.again)} delivered again." if it.again else "",
        f"Group {it.group} {_never_gets(it, it.passed)}" if it.passed else "",
        "" if it.again or it.passed else "No message is delivered again, and none is left out.",
        f"In {plural(it.clamped, 'lane')} that offset does not exist: the nearest one is taken." if it.clamped else "",
        *(
            f"Lane {shown(each.key)}: the next message {_does(it, 'be', 'is')} offset {each.after + 1}, "
            f"not {each.before + 1}."
            for each in it.moved[:_NAMED]
        ),
        f"{plural(rest, 'more lane')} move likewise." if rest > 0 else "",
        "This cannot be undone in one step: each lane had its own offset." if scattered and not it.dry_run else "",
    )


@sentences.register(Redriven)
def _redriven(it: Redriven) -> tuple[str, ...]:
    what = f"{plural(it.messages, 'dead letter')} with {plural(it.keys, 'key')}"
    stayed = f"{plural(it.remaining, 'dead letter')} stayed, because their lanes were locked: do it again."
    return _said(
        f"{what} {_does(it, 'go', 'went')} back into topic {it.to_topic}, for group {it.group} alone.",
        "What fails again becomes a dead letter again." if it.messages and not it.dry_run else "",
        stayed if it.remaining else "",
        _missing(it.missing),
    )


@sentences.register(Deleted)
def _deleted(it: Deleted) -> tuple[str, ...]:
    what = f"{plural(it.messages, 'dead letter')} of group {it.group}, with {plural(it.keys, 'key')},"
    return _said(f"{what} {_be(it, it.messages)} deleted for good.", _missing(it.missing))


@sentences.register(GroupDeleted)
def _group_deleted(it: GroupDeleted) -> tuple[str, ...]:
    kept = f"{plural(it.collectable, 'message')} that only this group kept can be collected then."
    return _said(
        f"Group {it.group} of topic {it.topic} {_be(it)} deleted, with its offsets in {plural(it.lanes, 'lane')}.",
        f"It {_never_gets(it, it.lag)}" if it.lag else "It has settled all messages.",
        f"{plural(it.members, 'live member')} {_does(it, 'fail', 'failed')}." if it.members else "",
        kept if it.collectable else "",
        f"These groups stay: {', '.join(it.groups_left)}." if it.groups_left else "The topic has no other group.",
    )


@sentences.register(SchedulePaused)
def _schedule_paused(it: SchedulePaused) -> tuple[str, ...]:
    name = f"Schedule {shown(it.name)}"
    if not it.changed:
        return (f"{name} has been paused since {moment(it.paused_at)}{_who(it.by, it.reason)}: nothing to do.",)
    return (
        f"{name} {_does(it, 'be', 'is')} paused.",
        f"Its next time, {moment(it.next_fire_at)}, is skipped if the pause lasts until then.",
    )


@sentences.register(ScheduleResumed)
def _schedule_resumed(it: ScheduleResumed) -> tuple[str, ...]:
    name = f"Schedule {shown(it.name)}"
    if not it.changed:
        return (f"{name} is not paused: nothing to do.",)
    return (
        f"{name} {_does(it, 'publish', 'publishes')} again, next at {moment(it.next_fire_at)}.",
        f"It was paused since {moment(it.paused_at)}{_who(it.by, it.reason)}.",
    )


@sentences.register(ScheduleRun)
def _schedule_run(it: ScheduleRun) -> tuple[str, ...]:
    where = f"lane {shown(it.key)} of topic {it.topic}"
    if not it.changed:
        return (f"This run was published before, at offset {it.offset} of {where}: nothing to do.",)
    at = "" if it.offset is None else f", at offset {it.offset}, with the id {shown(it.id)}"
    then = (
        "The schedule stays paused." if it.next_fire_at is None else f"Its next time stays: {moment(it.next_fire_at)}."
    )
    return (f"One message of schedule {shown(it.name)} {_be(it)} published to {where}{at}.", then)


@sentences.register(ScheduleRemoved)
def _schedule_removed(it: ScheduleRemoved) -> tuple[str, ...]:
    return (
        f"Schedule {shown(it.name)} of topic {it.topic}, key {shown(it.key)}, {_be(it)} removed.",
        f"It has published {plural(it.fired, 'message')}. What is in the log stays there.",
    )


# -- the way back ------------------------------------------------------------------------------------------------------


def undo(result: Any) -> tuple[WebButton, ...]:
    """Return the action that takes a result back, if one does."""
    if not getattr(result, "changed", True):
        return ()
    if isinstance(result, Paused):
        return (button("resume", "Resume again", topic=result.topic, group=result.group, key=result.key),)
    if isinstance(result, Resumed):
        return (button("pause", "Pause again", topic=result.topic, group=result.group, key=result.key),)
    if isinstance(result, SchedulePaused):
        return (button("resume-schedule", "Resume again", name=result.name),)
    if isinstance(result, ScheduleResumed):
        return (button("pause-schedule", "Pause again", name=result.name),)
    if isinstance(result, Skipped):
        lane_fields = {"topic": result.topic, "group": result.group, "key": result.key}
        return (button("seek", f"Go back to offset {result.offset}", **lane_fields, to=result.offset),)
    if isinstance(result, Sought) and len(result.moved) == 1:
        (lane,) = result.moved
        lane_fields = {"topic": result.topic, "group": result.group, "key": lane.key}
        return (button("seek", f"Go back to offset {lane.before + 1}", **lane_fields, to=lane.before + 1),)
    return ()


def pages_of(fields: Mapping[str, str]) -> tuple[WebCell, ...]:
    """Return the pages of the lane, group or topic on which an action acts, the nearest first."""
    topic, group, key = fields.get("topic"), fields.get("group"), fields.get("key")
    found = []
    if topic and group and key:
        found.append(to_lane(topic, group, key, f"Lane {shown(key)}"))
    if "name" in fields:
        found.append(WebCell("Schedules", link("schedules")))
    if "id" in fields or "letters" in fields:
        found.append(WebCell("Dead letters", link("dead-letters", topic=topic, group=group)))
    elif topic and group:
        found.append(WebCell(f"Lanes of {group}", link("lanes", topic=topic, group=group)))
    return (*found, WebCell("Is it stuck?", ""))


# -- pieces of sentences -----------------------------------------------------------------------------------------------


def _said(*parts: str) -> tuple[str, ...]:
    """Return the sentences that there are."""
    return tuple(filter(None, parts))


def _does(result: Any, verb: str, done: str) -> str:
    return would(verb, done, dry_run=result.dry_run)


def _be(result: Any, count: int = 1) -> str:
    return _does(result, "be", "was" if count == 1 else "were")


def _where(group: str, key: str | None) -> str:
    return f"Group {group}" if key is None else f"Lane {shown(key)} of group {group}"


def _who(by: str, reason: str) -> str:
    who = f" by {shown(by)}" if by else ""
    return f"{who} ({shown(reason)})" if reason else who


def _owner_loses(it: Skipped | Retried) -> str:
    return f"{it.owner} {_does(it, 'lose', 'lost')} the lane, and may take it again." if it.owner else ""


def _never_gets(result: Any, count: int) -> str:
    return f"{_does(result, 'never get', 'never gets')} {plural(count, 'message')} that it has not settled."


def _missing(count: int) -> str:
    return f"{plural(count, 'id')} {'names' if count == 1 else 'name'} no dead letter of this group." if count else ""


def _named(names: tuple[str, ...] | list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(shown(each) for each in names[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
