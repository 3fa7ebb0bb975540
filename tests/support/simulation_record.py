"""What the simulation knows of its own: what was published, begun and decided; and what must be true of the tables.

Owns the promises as assertions over two consecutive looks at the real tables; never touches a process. The simulation
calls `look` after every turn, which says whose turn it was, and `began` for every message that a handler gets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import define, field

from lanelog._engine.records import CRASHED
from lanelog._engine.run import State
from support.simulation import ATTEMPTS, GROUPS, TOPIC
from support.sql import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.simulation import Clock, Hand, Process

NOBODY = ("", 0)


class Place(NamedTuple):
    """One message, for one group."""

    group: str
    key: str
    offset: int


class Lease(NamedTuple):
    """Who has a lane, under which fencing token."""

    owner: str
    epoch: int


class Row(NamedTuple):
    """A delivery row."""

    through: int
    acked: int
    count: int
    postponed: int
    epoch: int
    alone: int
    crashed: int
    due: int
    error: str | None


class Offsets(NamedTuple):
    """An offsets row."""

    acked: int
    mark: int
    epoch: int


@define
class Tables:
    """One look at everything that matters."""

    heads: dict[str, int]
    top: tuple[int, int]
    log: dict[str, set[int]]
    offsets: dict[tuple[str, str], Offsets]
    deliveries: dict[Place, Row]
    leases: dict[tuple[str, str], Lease]
    dead: dict[Place, tuple[int, str]]
    effects: Counter[Place]

    @classmethod
    def read(cls, raw: Any) -> Tables:
        heads = {
            key: (head, epoch)
            for key, head, epoch in rows(
                raw, "SELECT partition_key, head_offset, max_epoch FROM queue_partitions WHERE topic = %s", TOPIC
            )
        }
        log: dict[str, set[int]] = defaultdict(set)
        dead: dict[Place, tuple[int, str]] = {}
        for topic, key, offset, group, original, count, error in rows(
            raw,
            "SELECT topic, partition_key, `offset`, failed_group, original_offset, failure_count, last_error"
            " FROM queue_messages",
        ):
            if topic == TOPIC:
                log[key].add(offset)
            else:
                place = Place(group, key, original)
                assert place not in dead, f"{place} is twice among the dead letters"
                dead[place] = (count, error)
        return cls(
            top=heads.pop("", (0, 0)),
            heads={key: head for key, (head, _) in heads.items()},
            log=log,
            dead=dead,
            offsets={
                (group, key): Offsets(*rest)
                for group, key, *rest in rows(
                    raw,
                    "SELECT consumer_group, partition_key, offset_acked, marked_through, marked_epoch"
                    " FROM queue_offsets WHERE topic = %s",
                    TOPIC,
                )
            },
            deliveries={
                Place(group, key, offset): Row(*rest)
                for group, key, offset, *rest in rows(
                    raw,
                    "SELECT consumer_group, partition_key, message_offset, through_offset, acked, retry_count,"
                    " postponed, lease_epoch, alone, crashed, invisible_until, last_error FROM queue_delivery_state",
                )
            },
            leases={
                (group, key): Lease(owner, epoch)
                for group, key, owner, epoch in rows(
                    raw, "SELECT consumer_group, partition_key, leased_by, lease_epoch FROM queue_partition_leases"
                )
            },
            effects=Counter(Place(*found) for found in rows(raw, "SELECT * FROM effects")),
        )

    def floor(self, key: str) -> int:
        found = self.offsets.get(("", key))
        return 0 if found is None else found.acked

    def watermark(self, group: str, key: str) -> int:
        found = self.offsets.get((group, key))
        return max(self.floor(key), 0 if found is None else found.acked)

    def settled(self, place: Place) -> bool:
        """Whether this group will never see the message again."""
        group, key, offset = place
        if key not in self.heads:
            return offset <= self.top[0]  # purged
        if offset <= self.watermark(group, key):
            return True
        return any(
            row.acked and at.offset <= offset <= row.through
            for at, row in self.deliveries.items()
            if (at.group, at.key) == (group, key)
        )

    def in_flight(self, place: Place) -> tuple[int, int]:
        """(epoch, number) of the attempt that is written down as handed out; (0, 0): none."""
        group, key, offset = place
        row = self.deliveries.get(place)
        if row is not None:
            return (row.epoch, row.count) if row.epoch and not row.acked else (0, 0)
        found = self.offsets.get((group, key))
        if found is not None and found.acked < offset <= found.mark and not self.settled(place):
            return found.epoch, 1
        return 0, 0

    def of_lane(self, group: str, key: str) -> tuple[Offsets | None, dict[Place, Row]]:
        """What only the lane's owner may write."""
        mine = {place: row for place, row in self.deliveries.items() if (place.group, place.key) == (group, key)}
        return self.offsets.get((group, key)), mine


@define
class Record:
    """What happened, and the last look."""

    raw: Any
    clock: Clock
    orders: dict[str, str]
    retention: float
    tables: Tables = field(init=False)
    published: dict[str, dict[int, float]] = field(factory=lambda: defaultdict(dict))  # key -> offset -> when
    acks: set[tuple[Place, Lease]] = field(factory=set)  # handlers that said so, as long as nobody had fenced them
    rejects: set[Place] = field(factory=set)
    postpones: Counter[Place] = field(factory=Counter)
    counted: Counter[Place] = field(factory=Counter)  # attempts, since the last postponement
    died: dict[Place, bool] = field(factory=dict)  # the last owner of this one was lost with it; True: alone
    begun: set[tuple[Place, int, int]] = field(factory=set)  # (…, epoch, number of the attempt)
    _postponed: Counter[Place] = field(factory=Counter)
    _epochs: dict[tuple[str, str], int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.tables = Tables.read(self.raw)

    def places(self) -> Iterator[Place]:
        for key, offsets in self.published.items():
            for offset in offsets:
                for group in GROUPS:
                    yield Place(group, key, offset)

    # -- handlers ------------------------------------------------------------------------------------------------------

    def began(self, hand: Hand, everybody: list[Process]) -> None:
        """A handler got a message: was it its turn?"""
        message, process, now = hand.message, hand.process, self.tables
        assert message is not None
        place, lease = _place(hand), Lease(process.owner(message.group), message.fencing_token)
        what = f"{process!r} began {place}, attempt {message.attempt},"
        assert now.leases.get((message.group, message.key)) == lease, f"{what} without the lease"
        assert not now.settled(place), f"{what} which is settled"
        assert now.in_flight(place) == (lease.epoch, message.attempt), f"{what} without its mark"
        assert message.attempt == self.counted[place] + 1, f"{what} after {self.counted[place]} attempts"
        others = [
            other
            for one in everybody
            if not one.gone
            for other in one.hands
            if other is not hand and other.message is not None and other.attempt.state is State.RUNNING
            if (other.message.group, other.message.key) == (message.group, message.key)
            if other.message.fencing_token == lease.epoch
        ]
        most = 2 if self.orders[message.group] == "concurrent" else 1
        assert len(others) < most, f"{what} while {others} had the lane"
        assert all(_place(other) != place for other in others), f"{what} twice"
        if self.orders[message.group] == "strict":
            for lower in range(1, message.offset):
                earlier = place._replace(offset=lower)
                assert now.settled(earlier) or (earlier, lease) in self.acks, f"{what} before {lower} was done"
        self.counted[place] = message.attempt
        self.begun.add((place, lease.epoch, message.attempt))
        self.died.pop(place, None)

    def decided(self, hand: Hand, outcome: str) -> None:
        """A handler is about to end: from now on this outcome is allowed."""
        message = hand.message
        assert message is not None
        if hand.attempt.state is State.SUPERSEDED:
            return
        place = _place(hand)
        if outcome in ("ack", "ack now", "effect"):
            self.acks.add((place, Lease(hand.process.owner(place.group), message.fencing_token)))
        elif outcome == "reject":
            self.rejects.add(place)
        elif outcome == "postpone":
            self.postpones[place] += 1

    def answered(self, place: Place, outcome: str, *, refused: bool) -> None:
        """A handler that settled explicitly has its answer."""
        if outcome in ("ack now", "effect") and not refused:
            assert self.tables.settled(place), f"{place} was confirmed, and is not settled"

    # -- tables --------------------------------------------------------------------------------------------------------

    def look(self, actor: Process | None, everybody: list[Process]) -> None:
        """Compare with the last look; in between, at most one process did anything."""
        was, now = self.tables, Tables.read(self.raw)
        self._log(was, now)
        self._purges(was, now)
        self._leases(was, now, everybody)
        self._writes(was, now, actor)
        self._settlements(was, now)
        self._dead_letters(was, now)
        self.tables = now

    def _log(self, was: Tables, now: Tables) -> None:
        for key, offsets in self.published.items():
            head = now.heads.get(key)
            assert head is None or head == max(offsets), f"the head of {key} is {head} after {max(offsets)}"
            for offset, when in offsets.items():
                if offset in now.log[key]:
                    continue
                for group in GROUPS:
                    place = Place(group, key, offset)
                    assert head is None or offset <= now.watermark(group, key), f"{place} was collected"
                assert offset not in was.log[key] or when + self.retention < self.clock.now + 0.01, (
                    f"{key} {offset} too soon"
                )
            if head is not None:
                assert now.offsets["", key].acked <= head
        for (group, key), row in now.offsets.items():
            assert max(row.acked, row.mark) <= now.heads[key], f"{group} is ahead of the head of {key}"

    def _purges(self, was: Tables, now: Tables) -> None:
        for key, head in was.heads.items():
            if key in now.heads:
                continue
            assert now.top[0] >= head, f"the offsets of {key} would be handed out again"
            for group in GROUPS:
                assert was.watermark(group, key) == head, (
                    f"{key} was purged, and {group} is at {was.of_lane(group, key)}"
                )
                assert now.of_lane(group, key) == (None, {})
                assert (group, key) not in now.leases

    def _leases(self, was: Tables, now: Tables, everybody: list[Process]) -> None:
        for lane, lease in now.leases.items():
            before = was.leases.get(lane)
            if lease == before:
                continue
            assert lease.epoch > self._epochs.get(lane, 0), f"{lane}: a fencing token was used twice"
            self._epochs[lane] = lease.epoch
            if before is not None:
                self._lost(was, lane, before, everybody)

    def _lost(self, was: Tables, lane: tuple[str, str], before: Lease, everybody: list[Process]) -> None:
        """What the last owner had in flight counts an attempt, whether or not a handler had begun it."""
        for place in self.places():
            if (place.group, place.key) != lane or was.settled(place):
                continue
            epoch, number = was.in_flight(place)
            if not epoch:
                continue
            self.counted[place] = max(self.counted[place], number)
            owner = next((one for one in everybody if one.subscriptions and one.owner(lane[0]) == before.owner), None)
            hands = [] if owner is None else [hand for hand in owner.hands if hand.message is not None]
            busy = [
                _place(hand) for hand in hands if hand.attempt.state is not State.SUPERSEDED
            ]  # given up: not counted
            if epoch == before.epoch:
                self.died[place] = busy == [place]

    def _writes(self, was: Tables, now: Tables, actor: Process | None) -> None:
        """Watermarks only grow, and nobody but the owner writes anything of a lane."""
        for key in now.heads:
            for group in GROUPS:
                before, after = was.watermark(group, key), now.watermark(group, key)
                assert after >= before or key not in was.heads, f"{group}/{key} went back from {before} to {after}"
                if key in was.heads and was.of_lane(group, key) != now.of_lane(group, key):
                    lease = was.leases.get((group, key), Lease(*NOBODY))
                    assert actor is not None, f"something wrote to {group}/{key}"
                    assert lease.owner == actor.owner(group), f"{actor!r} wrote to {group}/{key}, which is {lease}'s"
        for place, row in now.deliveries.items():
            if row.postponed != self._postponed[place]:
                assert row.postponed <= self.postpones[place], f"nobody postponed {place}"
                self._postponed[place] = row.postponed
                self.counted[place] = 0

    def _settlements(self, was: Tables, now: Tables) -> None:
        for place in self.places():
            if now.settled(place):
                if not was.settled(place):
                    lease = was.leases.get((place.group, place.key), Lease(*NOBODY))
                    assert (place, lease) in self.acks or place in now.dead, f"{place} was settled by nobody: {lease}"
            else:
                assert not was.settled(place), f"{place} was settled, and is not any more"
                assert place not in now.effects, f"the effect of {place} is there, and its ack is not"
        assert set(now.effects.values()) <= {1}, f"an effect happened twice: {now.effects}"

    def _dead_letters(self, was: Tables, now: Tables) -> None:
        assert was.dead.keys() <= now.dead.keys()
        for place in now.dead.keys() - was.dead.keys():
            count, error = now.dead[place]
            what = f"{place} is a dead letter after {count} attempts ({error})"
            assert not was.settled(place), f"{what}, and was settled"
            assert count == self.counted[place], f"{what}, not {self.counted[place]}"
            assert place in self.rejects or count >= ATTEMPTS, what
            assert error != CRASHED or self.died.get(place), f"{what}, but did not die alone"

    def drained(self) -> None:
        """Everything published was handled by every group, and nothing is left over."""
        for place in self.places():
            assert self.tables.settled(place), f"{place} was never handled"
        assert not self.tables.deliveries, f"left over: {self.tables.deliveries}"


def _place(hand: Hand) -> Place:
    assert hand.message is not None
    return Place(hand.message.group, hand.message.key, hand.message.offset)
