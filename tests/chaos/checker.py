"""Names what went wrong in a history, as Jepsen's tests of Kafka do, and which fault explains it.

Owns the judgement on strict lanes; it is pure and never looks at a clock, a file or a database. The chaos runner gives
it what all processes wrote down; the unit tests give it histories made by hand.

An anomaly that a fault explains is what at-least-once delivery permits (a duplicate after a SIGKILL); every other one
breaks a promise. Whatever is ambiguous (a kill between a commit and the line that records it) counts as permitted only
where the history itself cannot tell.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from math import inf
from typing import Any, Final, Literal

from attrs import frozen

from chaos import bounds, refusals
from chaos.account import LEASE, OVERLAPPING, REASONS, SETTLING, TURN, History, Run
from chaos.history import Event, Lane
from chaos.lives import MARK, is_lost, real

Kind = Literal[
    "lost-write", "unseen", "duplicate", "poll-skip", "nonmonotonic-poll", "inconsistent-offsets", "dual-ownership",
    "aborted-read", "effect-twice", "effect-lost", "ghost-ack", "misdirected", "begun-while-paused", "moved", "late",
    "refused", "warning",
]  # fmt: skip


@frozen(kw_only=True)
class Anomaly:
    """One thing that happened and should not have, or only because of `explained_by`."""

    kind: Kind
    topic: str
    key: str
    detail: str
    group: str = ""
    offset: int | None = None
    id: str = ""
    explained_by: str | None = None


def check(
    events: Iterable[Event], *, effect_groups: Iterable[str] = (), settling: float = SETTLING, lease: float = LEASE
) -> list[Anomaly]:
    """Every anomaly of the history; handlers of the effect groups write one row in each `message.transaction()`.

    Events come in any order. Raises KeyError for an End or Settle without its Begin.
    """
    history = History(list(events), frozenset(effect_groups), settling, lease)
    return [anomaly for rule in RULES for anomaly in rule(history)]


def unexplained(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """Those that break a promise."""
    return [anomaly for anomaly in anomalies if anomaly.explained_by is None]


def missing(history: History) -> Iterator[Anomaly]:
    """lost-write, unseen, effect-lost: what was acknowledged, and what became of it in each group."""
    for group in sorted(history.groups):
        runs = defaultdict(list)
        last: dict[Lane, int] = {}
        for (of, lane), all_runs in history.lanes.items():
            if of == group:
                last[lane] = max(run.begin.offset for run in all_runs)
                for run in all_runs:
                    runs[*lane, run.begin.id].append(run)
        rows = {(row.topic, row.key, row.id) for row in history.effects if row.group == group}
        mine = {message: new for message, new in history.redriven.items() if new.group == group}
        for message, publish in {**history.acknowledged, **mine}.items():
            topic, key, name = message
            place = (group, topic, key, publish.offset or 0)
            if is_lost(key) or message in rows or place in history.buried or place in history.kept_skips:
                continue
            found = _fate(history, group, runs[message], passed=(publish.offset or 0) < last.get((topic, key), 0))
            if found:
                yield _of(found[0], (topic, key), found[1], group=group, offset=publish.offset, id=name)


def _fate(history: History, group: str, runs: Sequence[Run], *, passed: bool) -> tuple[Kind, str] | None:
    """What is wrong with an acknowledged message without row and dead letter; `passed`: a later one was begun."""
    has_effects, drained = group in history.effect_groups, group in history.drained
    if any(run.done_at < inf for run in runs):
        return ("effect-lost", "it was settled, but its row is not there") if has_effects else None
    if runs and drained:
        return ("effect-lost" if has_effects else "unseen"), "its handler never finished"
    if not runs and passed:
        return "lost-write", "later messages of its key were handled, it never was"
    return ("unseen", "its handler was never called") if drained else None


def unacknowledged(history: History) -> Iterator[Anomaly]:
    """unseen, effect-lost: what is in the log although no publisher got a receipt, and what became of it in each group.

    Offsets are dense: whatever lies up to the head was published, also what collection has deleted by now.
    """
    places = set(history.logged)
    for lane, head in history.heads.items():
        places.update((*lane, offset) for offset in range(1, head + 1))
    places -= {(*message[:2], publish.offset or 0) for message, publish in history.acknowledged.items()}
    places -= {(new.topic, new.key, new.offset) for new in history.redriven.values()}
    for group in sorted(history.drained):
        done: dict[tuple[str, str, int], set[str]] = defaultdict(set)  # the ids at an offset whose work was done
        for (of, lane), runs in history.lanes.items():
            for run in runs if of == group else ():
                if run.done_at < inf:
                    done[*lane, run.begin.offset].add(run.begin.id)
        rows = {(row.topic, row.key, row.offset) for row in history.effects if row.group == group}
        for place in sorted(places - rows):
            name = history.logged.get(place, "")
            if (group, *place) in history.buried or (group, *place) in history.kept_skips:
                continue
            if not done[place] or (name and name not in done[place]):
                kind, fate = "unseen", "its handler never finished"
            elif group in history.effect_groups:
                kind, fate = "effect-lost", "it was settled, but its row is not there"
            else:
                continue
            detail = f"offset {place[2]} was published and nobody was told so: {fate}"
            yield _of(kind, place[:2], detail, group=group, offset=place[2], id=name)  # type: ignore[arg-type]


def twice(history: History) -> Iterator[Anomaly]:
    """duplicate: a message delivered again although its last delivery did not fail."""
    for lane, runs in history.lanes.items():
        by_id = defaultdict(list)
        for run in runs:
            by_id[run.begin.id].append(run)
        for same in by_id.values():
            for first, again in pairwise(same):
                if first.end and first.end.outcome == "raised" and first.end.at <= again.at and not first.effect:
                    continue  # a retry
                yield _at(lane, again, "duplicate", f"{again} after {first}", history.redelivery(first, again))


def skipped(history: History) -> Iterator[Anomaly]:
    """poll-skip: a message began before an earlier one of its lane was done."""
    existing = defaultdict(set)
    for publish in history.acknowledged.values():
        if publish.offset is not None:
            existing[publish.topic, publish.key].add(publish.offset)
    for new in history.redriven.values():
        existing[new.topic, new.key].add(new.offset)
    for (_, lane), runs in history.lanes.items():
        existing[lane].update(run.begin.offset for run in runs)
    for (group, lane), runs in history.lanes.items():
        done = {place[3]: at for place, at in history.skips.items() if place[:3] == (group, *lane)}
        for run in runs:
            done[run.begin.offset] = min(done.get(run.begin.offset, inf), run.done_at)
        todo = sorted(
            offset
            for offset in existing[lane]
            if (group, *lane, offset) not in history.buried and not history.foreign(group, *lane, offset)
        )
        yield from _out_of_turn(history, (group, lane), runs, todo, done)


def _out_of_turn(
    history: History, lane: tuple[str, Lane], runs: Sequence[Run], todo: Sequence[int], done: Mapping[int, float]
) -> Iterator[Anomaly]:
    first = 0  # in todo: what was not done yet when the run began
    for run in runs:
        while first < len(todo) and done.get(todo[first], inf) <= run.at:
            first += 1
        for offset in takewhile(lambda offset: offset < run.begin.offset, todo[first:]):  # noqa: B023 - used at once
            if done.get(offset, inf) <= run.at:
                continue
            cause = history.burial_lost(*lane, offset, run.at)
            yield _at(lane, run, "poll-skip", f"{run} while offset {offset} was not done yet", cause)
            if cause is None:
                break


def backwards(history: History) -> Iterator[Anomaly]:
    """nonmonotonic-poll: a lane went back to an earlier message."""
    for lane, runs in history.lanes.items():
        latest: dict[int, Run] = {}
        for previous, run in pairwise(runs):
            latest[previous.begin.offset] = previous
            if run.begin.offset < previous.begin.offset:
                first = latest.get(run.begin.offset)
                cause = history.redelivery(first, run) if first else history.skip_lost(*lane, run, previous.at)
                if history.seeks(*lane, run.begin.offset, previous.at, run.at):
                    cause = "seek"
                yield _at(lane, run, "nonmonotonic-poll", f"{run} after {previous}", cause)


def offsets(history: History) -> Iterator[Anomaly]:
    """inconsistent-offsets: two ids at one offset, or one id at two."""
    seen: dict[tuple[str, str, int, str], float] = {}  # the value: until when it may have been a commit not yet durable
    for publish in history.acknowledged.values():
        if publish.offset is not None:
            seen[publish.topic, publish.key, publish.offset, publish.id] = inf
    for new in history.redriven.values():
        seen[new.topic, new.key, new.offset, new.id] = inf
    for row in history.effects:
        seen[row.topic, row.key, row.offset, row.id] = inf
    for run in history.runs.values():
        begin = run.begin
        place = begin.topic, begin.key, begin.offset, begin.id
        seen[place] = max(seen.get(place, begin.at), begin.at)
    for what, other in (("ids", 2), ("offsets", 3)):
        places = defaultdict(set)
        for place in seen:
            places[(*place[:2], place[other])].add(place)
        for (topic, key, common), same in sorted(places.items(), key=str):
            if len(same) > 1:
                values = sorted(place[5 - other] for place in same)
                # A commit is visible a moment before it is durable: what was seen just before the server was killed
                # may be gone, its offset be given again and its publisher repeat it. All but one place are that old.
                lasting = sorted(seen[place] for place in same)[:-1]
                explained = all(
                    any(f.kind in {"server", "restarts"} and f.start - 1 <= at <= f.end for f in history.faults)
                    for at in lasting
                )
                detail, cause = f"{common!r} has the {what} {values}", "server" if explained else None
                yield _of("inconsistent-offsets", (topic, key), detail, explained_by=cause)


def owners(history: History) -> Iterator[Anomaly]:
    """dual-ownership: two handlers of one lane at the same time."""
    for lane, runs in history.whole.items():
        longest: Run | None = None
        for run in runs:
            if longest is not None and run.at < longest.over:
                until = min(longest.over, run.over)
                cause = history.taken_away(longest, run, until) or history.cause(
                    OVERLAPPING, {longest.begin.process, run.begin.process}, longest.at, until
                )
                yield _at(lane, run, "dual-ownership", f"{run} during {longest}", cause)
            if longest is None or run.over > longest.over:
                longest = run


def aborted(history: History) -> Iterator[Anomaly]:
    """aborted-read: a message was seen that was rolled back, or that nobody published."""
    for (group, (topic, key)), runs in history.lanes.items():
        for name, run in {run.begin.id: run for run in runs}.items():
            message = topic, real(key), name
            if (topic, key, name) in history.redriven:
                continue  # whose it is, `operators` asks
            if message in history.rolled_back and message not in history.published:
                yield _at((group, (topic, key)), run, "aborted-read", f"{run}: it was rolled back", None)
            elif message not in history.attempted:
                # What a redrive wrote is read at once; it may be lost sooner.
                cause = history.lives.losses[int(key.partition(MARK)[2])].kind if is_lost(key) else None
                yield _at((group, (topic, key)), run, "aborted-read", f"{run}: nobody published it", cause)


def effects(history: History) -> Iterator[Anomaly]:
    """effect-twice: two rows for one message. effect-lost: a confirmed transaction without its row."""
    rows = Counter((row.group, row.topic, row.key, row.id) for row in history.effects)
    offset_of = {(row.topic, row.key, row.id): row.offset for row in history.effects}
    for (group, topic, key, name), count in rows.items():
        # Each seek may have brought it back once.
        if count > 1 + len(history.seeks(group, (topic, key), offset_of[topic, key, name], 0.0, inf)):
            yield _of("effect-twice", (topic, key), f"{count} rows", group=group, id=name)
    for (group, lane), runs in history.lanes.items():
        for run in runs if not is_lost(lane[1]) else ():
            name = (*lane, run.begin.id)
            known = name in history.acknowledged or name in history.redriven  # then `missing` has named it
            if group in history.effect_groups and run.accepted and not rows[group, *lane, run.begin.id] and not known:
                yield _at((group, lane), run, "effect-lost", f"{run} was settled, but its row is not there", None)


def ghosts(history: History) -> Iterator[Anomaly]:
    """ghost-ack: a settlement was confirmed to an attempt that another one had superseded.

    Nobody begins a message whose settlement is committed. So if a later epoch or attempt began the same message before
    the confirmation, the commit came after that one's lease; no fault explains it, whoever was late to write it down.
    """
    for lane, runs in history.lanes.items():
        # By time of beginning, each of a higher epoch; a server that lost commits gives the same epochs again.
        newest: dict[int, list[Run]] = defaultdict(list)
        for run in runs:
            mine_now = newest[history.lives.number(run.at)]
            if not mine_now or run.begin.epoch > mine_now[-1].begin.epoch:
                mine_now.append(run)
        by_id = defaultdict(list)
        for run in runs:
            by_id[run.begin.id].append(run)
        for run in runs:
            if not run.accepted or run.settle is None:
                continue
            mine, life = run.begin, history.lives.number(run.at)
            attempts = [
                other
                for other in by_id[mine.id]
                if (other.begin.epoch, other.begin.attempt) > (mine.epoch, mine.attempt) and other.at < run.settle.at
                if history.lives.number(other.at) == life
            ]
            leases = [other for other in newest[life] if other.begin.epoch > mine.epoch and other.at < run.settle.asked]
            leases += [
                other
                for later in range(life + 1, len(history.lives.losses) + 1)
                for other in newest[later]
                if other.begin.epoch >= mine.epoch and other.begin.process != mine.process
                if other.at < run.settle.asked
            ]
            for other in (attempts + leases)[:1]:
                yield _at(lane, run, "ghost-ack", f"{run} was settled although {other} had begun", None)


def sought(history: History) -> Iterator[Anomaly]:
    """unseen, ghost-ack: what a seek brought back was not delivered again, or was settled from before the seek.

    A seek is no excuse for a lost message: everything between its place and where the group was has to come again.
    """
    for seek in history.steers:
        if seek.verb != "seek" or not seek.certain or seek.key is None or seek.offset is None:
            continue
        lane = seek.topic, seek.key
        runs = history.lanes.get((seek.group, lane), [])
        for run in runs:
            if run.settle and run.accepted and run.at < seek.start and run.settle.asked > seek.end:
                detail = f"{run} was settled although a seek had taken its lane away"
                yield _at((seek.group, lane), run, "ghost-ack", detail, None)
        for offset in range(seek.offset + 1, (seek.before or 0) + 1) if seek.group in history.drained else ():
            place = (seek.group, *lane, offset)
            if history.foreign(*place) or history.skips.get(place, -inf) >= seek.start:
                continue
            if history.lives.lost_with(*lane, offset, seek.end) is not None:
                continue
            later = [run for run in runs if run.begin.offset == offset and run.at >= seek.start]
            if any(run.done_at < inf for run in later) or (later and place in history.buried):
                continue
            detail = f"a seek brought it back from {seek.before} to {seek.offset}, and it was not handled again"
            yield _of("unseen", lane, detail, group=seek.group, offset=offset)


def operators(history: History) -> Iterator[Anomaly]:
    """misdirected: a redriven message went to another group. begun-while-paused: a pause was not obeyed."""
    for lane, runs in history.lanes.items():
        group, (topic, key) = lane
        pauses = [
            steer
            for steer in history.steers
            if steer.verb == "pause" and steer.certain and steer.group == group and steer.topic == topic
            if steer.key in (None, real(key))
        ]
        for run in runs:
            if history.foreign(group, topic, key, run.begin.offset):
                yield _at(lane, run, "misdirected", f"{run}: it was redriven for another group", None)
            for pause in pauses:
                if pause.end + TURN < run.at < (pause.until or inf):
                    cause = history.cause(OVERLAPPING | REASONS, {run.begin.process}, pause.start, run.at)
                    yield _at(lane, run, "begun-while-paused", f"{run}: paused since {pause.end:.3f}", cause)


def bounded(history: History) -> Iterator[Anomaly]:
    """moved, late, refused, warning: what the times say, see `bounds` and `refusals`."""
    told = (("refused", refusals.refused), ("warning", refusals.unwarned))
    for kind, rule in (("moved", bounds.moved), *told, *(("late", rule) for rule in bounds.LATE)):
        for group, lane, _, offset, name, detail in rule(history):
            yield _of(kind, lane, detail, group=group, offset=offset, id=name)  # type: ignore[arg-type]


def _at(lane: tuple[str, Lane], run: Run, kind: Kind, detail: str, cause: str | None) -> Anomaly:
    begin = run.begin
    return _of(kind, lane[1], detail, group=lane[0], offset=begin.offset, id=begin.id, explained_by=cause)


def _of(kind: Kind, lane: Lane, detail: str, **known: Any) -> Anomaly:
    return Anomaly(kind=kind, topic=lane[0], key=lane[1], detail=detail, **known)


RULES: Final = (
    missing, unacknowledged, twice, skipped, backwards, offsets, owners, aborted, effects, ghosts, sought, operators,
    bounded,
)  # fmt: skip
