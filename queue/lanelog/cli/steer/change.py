"""The commands that change something: from seek, pause, skip and retry to the deletion of groups and topics.

Owns their answers; administration does the work. Pause, resume and open-lanes act at once, the others only with
--execute.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from lanelog._base.text import moment, plural, shown
from lanelog._views.sentences import would
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS, instant, time_text
from lanelog.cli.command.verbs import Unfinished, changing, login, steering
from lanelog.cli.output.answer import Answer
from lanelog.cli.steer.sentences import left
from lanelog.errors import ConfigurationError, LanelogError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog.admin import Admin, Retried

_PAGE = 1000
"""Lanes of one read of `retry --all`."""
_TARGETS = "'earliest', 'latest', a time such as " + FORMS + ", or the offset of a lane's next message"


def seek_target(text: str) -> str | datetime | int:
    """Return the target of a seek. Raises ConfigurationError."""
    if text in {"earliest", "latest"}:
        return text
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        return int(text)
    found = instant(text)
    if found is None:
        raise ConfigurationError(f"cannot seek to {text!r}: give {_TARGETS}")
    return found


def bound(before: str | None, offset: int | None) -> datetime | int:
    """Return the bound of a purge. Raises ConfigurationError."""
    if (before is None) is (offset is None):
        raise ConfigurationError("give exactly one of --before and --before-offset")
    if before is None:
        assert offset is not None  # noqa: S101 - for the type checker
        return offset
    # A number is refused: 20260131 could be read as a time, and 2026 could be meant as an offset. The mistake would
    # delete the wrong messages.
    found = None if before.isdecimal() else instant(before)
    if found is None:
        raise ConfigurationError(f"cannot purge before {before!r}: give a time such as {FORMS}")
    return found


def _where(topic: str, group: str, key: str | None = None) -> str:
    return f"{shown(group)} on {shown(topic)}" + ("" if key is None else f", lane {shown(key)}")


# -- changing ----------------------------------------------------------------------------------------------------------


@options.command("seek orders billing --to yesterday", "seek orders billing --key ann --to 17 --execute")
@options.arguments("topic", "group")
@options.key
@click.option("--to", required=True, metavar="TARGET", help=f"{_TARGETS[0].upper()}{_TARGETS[1:]}.")
@changing
def seek(admin: Admin, *, topic: str, group: str, key: str | None, to: str, dry_run: bool) -> Answer:
    """Set where GROUP goes on in TOPIC: messages after it that were settled are delivered again.

    Running workers go on from there by themselves.
    """
    target = seek_target(to)
    done = admin.seek(topic, group, key=key, to=target, dry_run=dry_run)
    where = time_text(target) if isinstance(target, datetime) else done.to
    text = (
        f"{would('set', 'set', dry_run=dry_run)} {plural(done.lanes, 'lane')} of {_where(topic, group)} to {where}: "
        f"{plural(done.again, 'settled message')} again, {plural(done.passed, 'unsettled one')} skipped"
    )
    if done.clamped:
        text += f"; {plural(done.clamped, 'lane')} not as far as that, which is collected or not published yet"
    lines = [text, *(f"  {shown(lane.key)}: {lane.before} -> {lane.after}" for lane in done.moved[:20])]
    if len(done.moved) > 20:  # noqa: PLR2004 - as above
        lines.append("  …")
    return Answer(data=done, lines=lines)


@options.command("pause orders billing --why deploy", "pause orders billing --key ann")
@options.arguments("topic", "group")
@options.key
@options.words(help="Why; shown wherever the pause is listed.")
@click.option("--by", default=None, metavar="NAME", help="Who pauses; default: your login name.")
@partial(steering, why=False)
def pause(
    admin: Admin, *, topic: str, group: str, key: str | None, reason: str, by: str | None, dry_run: bool
) -> Answer:
    """Stop GROUP from handing out messages of TOPIC, in every process, until `resume`. Running handlers finish."""
    done = admin.pause(topic, group, key=key, by=login() if by is None else by, reason=reason, dry_run=dry_run)
    if not done.changed:
        text = f"{_where(topic, group, key)} is paused already, since {moment(done.paused_at)} by {shown(done.by)}"
    else:
        text = f"{would('pause', 'paused', dry_run=dry_run)} {_where(topic, group, key)}"
    return Answer(data=done, lines=[f"{text}: {plural(done.lag, 'message')} waiting"])


@options.command("resume orders billing", "resume orders billing --key ann")
@options.arguments("topic", "group")
@options.key
@steering
def resume(admin: Admin, *, topic: str, group: str, key: str | None, dry_run: bool) -> Answer:
    """End a pause of GROUP on TOPIC. Lanes that were paused one by one are resumed one by one."""
    done = admin.resume(topic, group, key=key, dry_run=dry_run)
    if not done.changed:
        return Answer(data=done, lines=[f"{_where(topic, group, key)} is not paused"])
    since = f"paused since {moment(done.paused_at)} by {shown(done.by)}: {shown(done.reason)}"
    return Answer(
        data=done, lines=[f"{would('resume', 'resumed', dry_run=dry_run)} {_where(topic, group, key)}, {since}"]
    )


@options.command("skip orders billing ann 17 --why broken", "skip orders billing ann 17 --why broken --execute")
@options.arguments("topic", "group", "key")
@click.argument("offset", type=int)
@options.words(required=True, help="Why it is not handled; recorded.")
@partial(changing, why=False)
def skip(admin: Admin, *, topic: str, group: str, key: str, offset: int, reason: str, dry_run: bool) -> Answer:
    """Settle the message at OFFSET of lane KEY for GROUP without handling it. Other groups still get it."""
    done = admin.skip(topic, group, key, offset, reason=reason, dry_run=dry_run)
    where = f"offset {offset} of {_where(topic, group, key)}"
    if not done.changed:
        return Answer(data=done, lines=[f"{where} is {done.state.value} already"])
    text = f"{would('skip', 'skipped', dry_run=dry_run)} {where}, which was {done.state.value} after "
    return Answer(data=done, lines=[text + plural(done.attempts, "attempt")])


@options.command("retry orders billing ann --offset 17 --execute", "retry orders billing --all --execute")
@options.arguments("topic", "group", "[key]")
@click.option("--offset", type=int, help="Only this message of KEY.")
@click.option("--all", "everything", is_flag=True, help="Those of all lanes, lane by lane.")
@changing
def retry(
    admin: Admin, *, topic: str, group: str, key: str | None, offset: int | None, everything: bool, dry_run: bool
) -> Answer:
    """Hand the waiting messages of lane KEY out to GROUP at once, whatever their back-off: after a fix.

    What else is being handled there is delivered again, and its handler is refused when it settles.
    """
    if (key is None) is not everything:
        raise ConfigurationError("choose the lane by exactly one of KEY and --all")
    if key is None:
        if offset is not None:
            raise ConfigurationError("--offset is for one lane: give its KEY")
        return _retry_all(admin, topic, group, dry_run=dry_run)
    done = admin.retry(topic, group, key, offset, dry_run=dry_run)
    where = _where(topic, group, key)
    if not done.changed:
        what = "nothing" if offset is None else f"nothing at offset {offset}"
        return Answer(data=done, lines=[f"{what} of {where} waits for another attempt"])
    text = f"{would('hand', 'handed', dry_run=dry_run)} out {plural(done.messages, 'message')} of {where} at once"
    return Answer(data=done, lines=[text])


def _retry_all(admin: Admin, topic: str, group: str, *, dry_run: bool) -> Answer:
    """Retry lane by lane, each in a transaction of its own.

    If it ends in the middle, the lanes before are done, and the same command goes on. A message that fails meanwhile in
    a lane that is done waits, as after the end.
    """
    done: list[Retried] = []
    after = ""
    while page := admin.lanes(topic, group, order_by="key", after=after, limit=_PAGE):
        after = page[-1].key
        for lane in page:
            if not lane.waiting:
                continue
            try:
                done.append(admin.retry(topic, group, lane.key, dry_run=dry_run))
            except LanelogError as exc:
                if dry_run or not done:
                    raise
                raise Unfinished(f"{exc}; {plural(len(done), 'lane')} done: the same command goes on") from exc
    changed = [each for each in done if each.changed]
    count = sum(each.messages for each in changed)
    data = {"topic": topic, "group": group, "lanes": len(changed), "messages": count, "dry_run": dry_run}
    if not changed:
        return Answer(data=data, lines=[f"nothing of {_where(topic, group)} waits for another attempt"])
    what = f"{plural(count, 'message')} in {plural(len(changed), 'lane')} of {_where(topic, group)}"
    return Answer(data=data, lines=[f"{would('hand', 'handed', dry_run=dry_run)} out {what} at once"])


@options.command("release orders billing ann", "release orders billing ann --why 'it hangs' --execute")
@options.arguments("topic", "group", "key")
@changing
def release(admin: Admin, *, topic: str, group: str, key: str, dry_run: bool) -> Answer:
    """Take lane KEY away from its owner by force; any member of GROUP may take it then.

    An owner that has long given no sign of life loses all its lanes.

    A message that is being handled there is delivered again, and its handler is refused when it settles.
    """
    done = admin.release(topic, group, key, dry_run=dry_run)
    if not done.changed:
        return Answer(data=done, lines=[f"nobody has {_where(topic, group, key)}"])
    text = f"{would('take', 'took', dry_run=dry_run)} {_where(topic, group, key)} from {shown(done.owner)}"
    more = f" and {plural(len(done.others), 'other lane')} of it" if done.others else ""
    return Answer(data=done, lines=[f"{text} ({done.owner_state}){more}"])


@options.command("open-lanes orders", "open-lanes orders 128", name="open-lanes")
@click.argument("topic")
@click.argument("lanes", type=int, required=False)
@steering
def open_lanes(admin: Admin, *, topic: str, lanes: int | None, dry_run: bool) -> Answer:
    """Show over how many open lanes TOPIC spreads its messages without a key, or set the number to LANES (1 to 1000).

    Publishers follow within ten seconds. Surplus lanes are consumed until they are empty.
    """
    if lanes is None:
        found = admin.open_lanes(topic)
        return Answer(data={"topic": topic, "lanes": found}, lines=[f"{shown(topic)} has {plural(found, 'open lane')}"])
    done = admin.set_open_lanes(topic, lanes, dry_run=dry_run)
    if not done.changed:
        return Answer(data=done, lines=[f"{shown(topic)} has {plural(lanes, 'open lane')} already"])
    text = f"{would('set', 'set', dry_run=dry_run)} {shown(topic)} to {plural(lanes, 'open lane')}, from {done.before}"
    return Answer(data=done, lines=[text])


# -- deleting ----------------------------------------------------------------------------------------------------------


@options.command(
    "delete-group orders billing", "delete-group orders billing --why 'moved to v2' --execute", name="delete-group"
)
@options.arguments("topic", "group")
@click.option("--evict", is_flag=True, help="Also while members of it live: their subscriptions fail.")
@changing
def delete_group(admin: Admin, *, topic: str, group: str, evict: bool, dry_run: bool) -> Answer:
    """Delete GROUP and its offsets in TOPIC, unless a member lives. Collection does not wait for it any more."""
    done = admin.delete_group(topic, group, evict=evict, dry_run=dry_run)
    left = ", ".join(map(shown, done.groups_left)) or "none: nothing is collected"
    text = f"{would('delete', 'deleted', dry_run=dry_run)} {_where(topic, group)}: {plural(done.lanes, 'lane')}, "
    text += f"{plural(done.lag, 'unsettled message')}, {plural(done.members, 'running member')}"
    then = f"collection may then delete {plural(done.collectable, 'message')}; groups left: {left}"
    return Answer(data=done, lines=[text, then])


@options.command("delete-topic orders-old", "delete-topic orders-old --execute", name="delete-topic")
@click.argument("topic")
@changing
def delete_topic(admin: Admin, *, topic: str, dry_run: bool) -> Answer:
    """Delete TOPIC: its groups, lanes and messages, and its messages that are not due yet.

    Its dead letter topics and the schedules that publish to it stay.
    """
    done = admin.delete_topic(topic, dry_run=dry_run)
    stay = [f"lanelog delete-topic {shlex.quote(each)}" for each in done.dead_letter_topics]
    anew = [f"lanelog schedule remove {shlex.quote(each)}" for each in done.schedules]
    text = f"{would('delete', 'deleted', dry_run=dry_run)} {shown(topic)}: {plural(done.lanes, 'lane')}, "
    text += f"{plural(done.messages, 'message')}, {done.scheduled} not due yet; "
    text += f"groups: {', '.join(map(shown, done.groups)) or 'none'}"
    return Answer(
        data=done,
        lines=[
            text,
            *_unsettled(done.unsettled),
            *(f"its dead letters stay: {shown(each)}" for each in stay),
            *(f"a schedule publishes to it and makes it anew: {shown(each)}" for each in anew),
        ],
    )


@options.command("purge orders --before -30d", "purge orders --before-offset 1000 --execute")
@click.argument("topic")
@click.option("--before", metavar="TIME", help=f"A time such as {FORMS}.")
@click.option("--before-offset", type=int, metavar="N", help="Or an offset, which is meant in every lane.")
@changing
def purge(admin: Admin, *, topic: str, before: str | None, before_offset: int | None, dry_run: bool) -> Answer:
    """Delete the messages of TOPIC that were written before a time, settled or not."""
    end = bound(before, before_offset)
    done = admin.purge(topic, before=end, dry_run=dry_run)
    text = f"{would('delete', 'deleted', dry_run=dry_run)} {plural(done.messages, 'message')} "
    text += f"in {plural(done.lanes, 'lane')} of {shown(topic)}"
    if isinstance(end, datetime):
        text += f", written before {time_text(end)}"
    return Answer(
        data=done,
        lines=[text, *_unsettled(done.unsettled)],
        alarms=left(done.remaining, "message", dry_run=dry_run),
    )


def _unsettled(groups: Mapping[str, int]) -> list[str]:
    """Return a line for each group that loses messages."""
    return [f"  {shown(group)} had not settled {count} of them" for group, count in groups.items() if count]
