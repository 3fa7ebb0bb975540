"""The lines above and below a table: what is wrong in it, and the sums of its numbers.

Owns these sentences, as plain functions of values. Asks no database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from typing import Protocol

from lanelog._base.text import age, plural
from lanelog.admin import GroupInfo, LaneInfo, LeaseInfo, MemberInfo, OwnerState, TopicInfo
from lanelog.admin.operate.hung import HUNG, state_of
from lanelog.cli.output.answer import name


class _Lagging(Protocol):
    @property
    def lag(self) -> int: ...


def where(topic: str, group: str | None = None, key: str | None = None) -> str:
    """Return topic, group and key in one line: `billing on orders, lane ann`."""
    text = name(topic) if group is None else f"{name(group)} on {name(topic)}"
    return text if key is None else f"{text}, lane {name(key)}"


def listed(found: Sized, noun: str, limit: int, many: str | None = None) -> str:
    """Return how many rows there are, and whether there may be more."""
    return plural(len(found), noun, many) + (", as many as --limit allows" if len(found) >= limit else "")


def _parts(*counted: tuple[int, str]) -> str:
    """Join the numbers that are not zero."""
    return ", ".join(f"{number:,} {what}" for number, what in counted if number)


def topics(found: Sequence[TopicInfo]) -> str:
    """Say what is wrong with topics."""
    unread = sum(bool(each.messages and not each.groups and not each.holds_dead_letters) for each in found)
    dead = sum(bool(each.dead_letters and not each.holds_dead_letters) for each in found)
    wrong = _parts((dead, "with dead letters"), (unread, "with messages and no group"))
    return plural(len(found), "topic") + (f": {wrong}" if wrong else "")


def messages(found: Sequence[TopicInfo], limit: int) -> str:
    """Say how much topics hold."""
    dead = sum(each.dead_letters for each in found if not each.holds_dead_letters)
    held = f"{plural(sum(each.messages for each in found), 'message')} in {plural(sum(e.lanes for e in found), 'lane')}"
    return f"{held}, {plural(dead, 'dead letter')}; {listed(found, 'topic', limit)}"


def groups(found: Sequence[GroupInfo]) -> str:
    """Say what is wrong with groups."""
    wrong = _parts(
        (sum(bool(each.lag and not each.members) for each in found), "lagging without a member"),
        (sum(bool(each.paused_at or each.paused_lanes) for each in found), "with a pause"),
        (sum(bool(each.stale_lanes) for each in found), "with lanes of owners that are gone"),
    )
    on = plural(len({each.topic for each in found}), "topic")
    return f"{plural(len(found), 'group')} on {on}" + (f": {wrong}" if wrong else "")


def lag(found: Sequence[GroupInfo]) -> str:
    """Say how far groups are behind, together."""
    ages = [each.oldest_age for each in found if each.oldest_age is not None]
    oldest = age(max(ages, default=None), exact=all(each.oldest_age_exact for each in found))
    behind = plural(sum(bool(each.lag) for each in found), "group")
    return f"lag {sum(each.lag for each in found):,} in {behind}, oldest {oldest}"


def no_groups(topic: str | None) -> str:
    """Say why there is no group."""
    where = "no group" if topic is None else f"no group on {name(topic)}"
    return f"{where}: a group is there once it has subscribed"


def members(found: Iterable[MemberInfo]) -> str:
    """Say how many members there are, by state."""
    states = Counter(map(state_of, found))
    return ", ".join(f"{states[state]:,} {state}" for state in (HUNG, *OwnerState) if states[state])


def lanes_of_members(found: Sequence[MemberInfo], limit: int) -> str:
    """Say how many lanes members have."""
    return f"{plural(sum(each.lanes for each in found), 'lane')} of {listed(found, 'member', limit)}"


def lanes(found: Sequence[LaneInfo]) -> str:
    """Say what is wrong with lanes."""
    wrong = _parts(
        (sum(each.failed for each in found), "failing"),
        (sum(bool(each.paused_at or each.group_paused) for each in found), "paused"),
        (sum(each.owner_state is not None and not each.owner_state.lives for each in found), "of owners that are gone"),
        (sum(bool(each.lag and each.owner is None) for each in found), "waiting without an owner"),
    )
    return plural(len(found), "lane") + (f", {wrong}" if wrong else "")


def lag_of_lanes(found: Sequence[_Lagging], limit: int, noun: str = "lane") -> str:
    """Say how far lanes are behind, together."""
    behind = sum(bool(each.lag) for each in found)
    return f"lag {sum(each.lag for each in found):,} in {behind:,} of {listed(found, noun, limit)}"


def leases(found: Sequence[LeaseInfo]) -> str:
    """Say what is wrong with leases."""
    stale = sum(each.stale for each in found)
    free = sum(each.owner is None for each in found)
    wrong = _parts((stale, "stale"), (free, "released"))
    return plural(len(found), "lease") + (f": {wrong}" if wrong else "")
