"""Status: what is stuck, since when, which owner has it, and the command that repairs it.

Owns the look-ups for it; their number is bounded, however large the backlog is. Judges nothing (`problems` does), and
changes nothing. Each look-up has a snapshot of its own, so the parts of an answer may differ by a moment.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from lanelog._base.text import plural
from lanelog._log.lookup.known import permitted, read
from lanelog.admin.dead_letters import listing
from lanelog.admin.lookup import completion
from lanelog.admin.lookup.parallel import in_parallel
from lanelog.admin.operate import backlog, repair, server
from lanelog.admin.operate.held_heads import held_heads
from lanelog.admin.operate.hung import busy_words, members_hung, normal_seconds
from lanelog.admin.operate.problem import Problem
from lanelog.admin.operate.problems import (
    SLOW,
    lanes_may_be_wrong,
    of_contradiction,
    of_group,
    of_held_head,
    of_lane,
    of_letters,
    of_open_ack,
    of_server,
    worst_first,
)
from lanelog.admin.operate.writes import unwritten
from lanelog.admin.read import messages
from lanelog.admin.totals import group_sums, lanes, registrations, topics, workloads
from lanelog.admin.totals.ages import USUAL
from lanelog.admin.totals.registrations import GROUPS_MAX
from lanelog.admin.totals.topics import GroupRead
from lanelog.admin.types.topology import GroupInfo, LaneInfo, MessageState
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from lanelog._database import Database
    from lanelog._log.repair import Contradiction
    from lanelog._process.workload import Workload
    from lanelog.admin.operate.held_heads import HeldHead
    from lanelog.admin.operate.writes import Unwritten
    from lanelog.admin.types.topology import TopicInfo

LANES: Final = 100
"""Lanes of each lagging group that are read: those with the oldest messages."""
RUNNING: Final = 20
"""Lanes of each group whose attempt in flight is read. Each costs a statement."""
LETTERS: Final = 10_000
"""Dead letters of one topic that are read for their reasons. If there are more, none is read."""
EXPLAINED: Final = 100
"""Topics whose dead letters are read for their reasons: of those with so few, the ones with the most."""
LETTERS_TOGETHER: Final = 50_000
"""Dead letters of all these topics together: a status takes seconds."""
CONTRADICTIONS: Final = 20
"""Contradictions between tables that are shown."""
TOPICS: Final = 1000
"""Topics that are read, unless they are named."""
HEADS: Final = 1000
"""Lanes of each topic whose head is compared with the log; `doctor` compares all."""
COMPARING: Final = 3.0
"""Seconds after which no other topic's tables are compared; `doctor` compares all."""


@frozen(kw_only=True)
class Status:
    """What is wrong, and sums over the topics and groups that were read."""

    at: datetime
    """The database's clock at the beginning."""
    topics: int
    groups: tuple[GroupInfo, ...]
    lag: int
    """Messages not settled, summed over groups."""
    oldest_age: float | None
    """Seconds since the oldest unsettled message was written; None: nothing is unsettled."""
    oldest_age_exact: bool
    """False: there may be an older one, see `GroupInfo.oldest_age_exact`."""
    dead_letters: int
    """Dead letters that are neither redriven nor deleted."""
    problems: tuple[Problem, ...]
    """The worst first; empty: nothing is stuck in what was read, see `left_out`."""
    members_known: bool = True
    """False: the server takes no writes, or is not the one that members write to.

    Then `GroupInfo.members` says nothing, and no problem follows from it.
    """
    heaviest_lanes: tuple[LaneInfo, ...] = ()
    """The lane that has at least half of the lag of its group, as it was at first, for each group that is behind."""
    topics_left_out: int = 0
    """Topics that were not read: without a choice, the first 1,000 are."""
    groups_left_out: int = 0
    """Groups that were not read: the first 1,000 are, or the first 1,000 of each chosen topic."""
    topics_not_compared: int = 0
    """Topics whose tables were not compared with each other, because that took too long."""

    @property
    def waiting(self) -> int:
        """Messages that wait for their next attempt, summed over groups."""
        return sum(group.waiting for group in self.groups)

    @property
    def left_out(self) -> str:
        """What was not read or not compared, as a sentence without its end. Empty: all was."""
        unread = left_out(
            (self.topics, self.topics_left_out, "topic"), (len(self.groups), self.groups_left_out, "group")
        )
        rest = self.topics_not_compared
        compared = f"the tables of {plural(rest, 'topic')} were not compared" if rest else ""
        return "; ".join(filter(None, (unread, compared)))


def members_of(found: Status) -> str:
    """Return how many members live, in words: `3 members`."""
    return plural(sum(group.members for group in found.groups), "member") if found.members_known else "members unknown"


def attempts_awaited(messages: int) -> str:
    """Return how many messages wait, in words: `2 messages wait for their next attempt`."""
    waits = "waits for its" if messages == 1 else "wait for their"
    return f"{plural(messages, 'message')} {waits} next attempt"


def status(database: Database, chosen: Collection[str] | None, since: Status | None) -> Status:
    """See `Admin.status`."""
    if isinstance(chosen, str | bytes):
        raise ConfigurationError("topics must be a list of topics, not one of them")
    chosen = None if chosen is None else tuple(dict.fromkeys(chosen))
    at = completion.now(database)
    seen = read_parts(database, chosen)
    groups = [each.info for each in seen.groups]
    growth = {} if since is None else _growth(groups, at, since)
    before, seconds = (None, 0.0) if since is None else (since.heaviest_lanes, (at - since.at).total_seconds())
    found, heaviest = backlog.name_keys(database, list(_problems(database, seen, growth)), groups, before, seconds)
    ages = [group.oldest_age for group in groups if group.oldest_age is not None]
    return Status(
        at=at,
        topics=len(seen.topics),
        groups=tuple(groups),
        lag=sum(group.lag for group in groups),
        oldest_age=max(ages, default=None),
        oldest_age_exact=all(group.oldest_age_exact for group in groups),
        dead_letters=sum(topic.dead_letters for topic in seen.topics if not topic.holds_dead_letters),
        problems=tuple(worst_first(found)),
        topics_left_out=seen.topics_left_out,
        groups_left_out=seen.groups_left_out,
        topics_not_compared=seen.topics_not_compared,
        members_known=seen.unwritten is None,
        heaviest_lanes=heaviest,
    )


def left_out(*unread: tuple[int, int, str]) -> str:
    """Return which things were not read: `only 1,000 of 1,200 groups were read`. Empty: none.

    `unread`: how many were, how many were not, and what they are.
    """
    parts = [f"{seen:,} of {seen + rest:,} {noun}s" for seen, rest, noun in unread if rest]
    return f"only {' and '.join(parts)} were read" if parts else ""


@define(kw_only=True)
class StatusParts:
    """Topics, groups, contradictions between tables, how many of each were left out, and heads that are waited for."""

    topics: list[TopicInfo] = field(factory=list)
    topics_left_out: int = 0
    groups: list[GroupRead] = field(factory=list)
    groups_left_out: int = 0
    wrong: list[Contradiction] = field(factory=list)
    topics_not_compared: int = 0
    held: list[HeldHead] | None = None
    """Heads that publishers wait for. None: the account may not see them."""
    unwritten: Unwritten | None = None
    """Why heartbeats say nothing about members; None: they can be believed."""


def read_parts(database: Database, chosen: Collection[str] | None) -> StatusParts:
    """Read the parts together: each one reads all lanes."""
    seen = StatusParts()

    def read_topics() -> None:
        if chosen is None:
            seen.topics, seen.topics_left_out = topics.topics_and_rest(database, TOPICS)
        else:
            seen.topics = [topics.topic(database, each) for each in chosen]

    def read_contradictions() -> None:
        compared = repair.compare_topics(database, CONTRADICTIONS, chosen=chosen, heads=HEADS, seconds=COMPARING)
        seen.wrong, seen.topics_not_compared = compared.found, compared.not_compared

    def read_groups() -> None:
        for each in (None,) if chosen is None else chosen:
            found = topics.read_groups(database, each, USUAL)
            seen.groups += found
            if len(found) >= GROUPS_MAX:
                there = read(database, registrations.count, "counting groups", each)
                seen.groups_left_out += max(0, there - len(found))

    def read_held_heads() -> None:
        found = held_heads(database)
        seen.held = found and [each for each in found if chosen is None or each.topic in chosen]

    def read_writes() -> None:
        seen.unwritten = read(database, unwritten, "checking whether heartbeats are written", database)

    in_parallel([read_topics, read_contradictions, read_groups, read_held_heads, read_writes])
    return seen


def _problems(database: Database, seen: StatusParts, growth: dict[tuple[str, str], float]) -> Iterator[Problem]:
    if seen.unwritten is not None:
        yield of_server(seen.unwritten)
    believed = seen.unwritten is None
    accounts = _accounts(database, {ack.connection for each in seen.groups for ack in each.acks})
    yield from map(of_contradiction, seen.wrong)
    yield from (problem for each in seen.held or () if (problem := of_held_head(each)) is not None)
    for each, inside in zip(seen.groups, inside_groups(database, seen.groups, believed=believed), strict=True):
        working = [workload for workload in inside.workloads.values() if workload.workers]
        group, busy = each.info, busy_words(working) if working else ""
        yield from of_group(group, growth.get((group.topic, group.group)), believed=believed, busy=busy)
        yield from inside.hung
        yield from (of_open_ack(each.info.group, ack, accounts.get(ack.connection)) for ack in each.acks)
        yield from inside.lanes
    dying = [topic for topic in seen.topics if topic.dead_letters and not topic.holds_dead_letters]
    few = sorted((topic for topic in dying if topic.dead_letters <= LETTERS), key=lambda topic: -topic.dead_letters)
    explained, room = set(), LETTERS_TOGETHER
    for topic in few[:EXPLAINED]:
        if topic.dead_letters <= room:
            explained.add(topic.topic)
            room -= topic.dead_letters
    for topic in dying:
        known = topic.topic in explained
        yield from of_letters(topic, listing.counts(database, topic.topic, None).reasons if known else None)


def _accounts(database: Database, connections: Collection[int]) -> dict[int, str]:
    """Return the accounts of connections that the asking account may see."""
    if not connections:
        return {}
    ask = partial(read, database, server.accounts, "asking whose connections they are", sorted(connections))
    return permitted(ask) or {}


@frozen(kw_only=True)
class InsideGroup:
    """What is wrong inside of one group."""

    lanes: tuple[Problem, ...] = ()
    """Of those `LANES` that have the oldest messages."""
    hung: tuple[Problem, ...] = ()
    """Members whose workers all hang."""
    workloads: Mapping[str, Workload] = field(factory=dict)
    """What its living members do, by owner. Empty: none says it, or nothing is old."""


def inside_groups(database: Database, groups: Sequence[GroupRead], *, believed: bool) -> list[InsideGroup]:
    """Return what is wrong with lanes and members of each group.

    `believed`: whether heartbeats say who lives.
    """
    suspects = [each for each in groups if lanes_may_be_wrong(each.info, believed=believed)]
    some = group_sums.parts(suspects, lambda each: each.info.topic)
    found: dict[tuple[str, str], InsideGroup] = {}
    for each in in_parallel([partial(_inside, database, chunk, believed=believed) for chunk in some]):
        found.update(each)
    return [found.get((each.info.topic, each.info.group), InsideGroup()) for each in groups]


def _inside(database: Database, groups: Sequence[GroupRead], *, believed: bool) -> dict[tuple[str, str], InsideGroup]:
    topic = groups[0].info.topic
    keys = {each.info.group: each.oldest[:LANES] for each in groups}
    paused = [each.info.group for each in groups if each.info.paused_at is not None]
    # Fewer keys than LANES are all lanes that lag. In others, nothing but a pause can be wrong.
    most = LANES if any(each.info.paused_lanes for each in groups) else 0
    seen = lanes.of_groups(database, topic, keys, paused, most=most)
    tables = database.tables_version
    busy = (
        read(database, workloads.of_groups, "reading workloads", topic, list(keys), tables=tables) if believed else {}
    )
    found: dict[tuple[str, str], InsideGroup] = {}
    for group in (each.info for each in groups):
        doing = {owner: each for (of, owner), each in busy.items() if of == group.group}
        judged = (
            of_lane(
                lane,
                group,
                _running(database, lane) if number < RUNNING else None,
                believed=believed,
                normal=normal_seconds(lane.owner, doing),
            )
            for number, lane in enumerate(seen[group.group])
        )
        wrong = tuple(each for each in judged if each is not None)
        found[topic, group.group] = InsideGroup(lanes=wrong, hung=tuple(members_hung(group, doing)), workloads=doing)
    return found


def _running(database: Database, lane: LaneInfo) -> float | None:
    """Return for how many seconds the attempt in flight of a lane's first message has run.

    None: none does, or it is young.

    All times are the database's: the message's age is now minus the time at which it was written.
    """
    if lane.state is not MessageState.PROCESSING or (lane.oldest_age or 0) <= SLOW:
        return None
    message = messages.message(database, lane.topic, lane.key, message_id=None, offset=lane.watermark + 1)
    began = [
        each.last_attempt_at
        for each in (message.states if message else ())
        if each.group == lane.group and each.state is MessageState.PROCESSING
    ]
    if message is None or not began or began[0] is None or lane.oldest_age is None:
        return None
    return lane.oldest_age - (began[0] - message.created_at).total_seconds()


def _growth(groups: list[GroupInfo], at: datetime, since: Status) -> dict[tuple[str, str], float]:
    """Return by how many messages a second lags grew since an earlier status."""
    seconds = (at - since.at).total_seconds()
    if seconds <= 0:  # the clock went back
        return {}
    before = {(each.topic, each.group): each.lag for each in since.groups}
    return {
        (each.topic, each.group): (each.lag - before.get((each.topic, each.group), each.lag)) / seconds
        for each in groups
    }
