"""What the simulation knows of its own: what was published, begun, decided and steered; and what must be true then.

Owns the promises as assertions over two consecutive looks at the real tables; never touches a process. The simulation
calls `look` after every turn, which says whose turn it was, or what an operator did, and `began` for every message that
a handler gets.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from attrs import define, field, frozen

from lanelog._engine.lane.run import State
from lanelog._engine.lane.values import CRASHED
from lanelog.message import Message
from support.simulation import ATTEMPTS, GROUPS, Clock, Hand, Process
from support.simulation_tables import Lease, Place, Tables

NOBODY = ("", 0)
COMMITTED = ("effect", "own effect", "own effect, committed late")
"""Outcomes that write an effect and settle in one transaction, which is committed."""


@frozen(kw_only=True)
class Steered:
    """What an operator did between two looks; nothing else did anything meanwhile."""

    verb: Literal["seek", "skip", "release", "pause", "delete"]
    group: str
    watermarks: dict[str, int]
    """Its lanes, and where the group is to be afterwards."""
    skipped: int = 0
    """The offset that is settled now, of a skip."""

    def __contains__(self, lane: tuple[str, str]) -> bool:
        return lane[0] == self.group and lane[1] in self.watermarks


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
    rejects: set[tuple[Place, Lease]] = field(factory=set)
    postpones: Counter[Place] = field(factory=Counter)
    counted: Counter[Place] = field(factory=Counter)  # attempts, since the last postponement
    died: dict[Place, bool] = field(factory=dict)  # the last owner of this one was lost with it; True: alone
    begun: set[tuple[Place, int, int]] = field(factory=set)  # (…, epoch, number of the attempt)
    targets: dict[tuple[str, int], str] = field(factory=dict)  # what was redriven, and for which group alone
    lives: Counter[Place] = field(factory=Counter)  # how often a settled message was brought back
    deleted: set[str] = field(factory=set)  # groups, until they are registered anew
    paused: dict[tuple[str, str], set[Process]] = field(factory=dict)  # lanes (key '': all), and who knows of it
    _unaware: set[tuple[Process, str, str, int]] = field(factory=set)  # whose lane of this epoch was taken by force
    _postponed: Counter[Place] = field(factory=Counter)
    _epochs: dict[tuple[str, str], int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.tables = Tables.read(self.raw)

    def places(self) -> Iterator[Place]:
        """Every message, for every group that is to see it."""
        for key in self.published:
            for group in GROUPS:
                if group not in self.deleted:
                    yield from self._of_lane(group, key)

    def _of_lane(self, group: str, key: str) -> Iterator[Place]:
        for offset in self.published[key]:
            if self.targets.get((key, offset), group) == group:
                yield Place(group, key, offset)

    def kept(self, process: Process) -> None:
        """Its keeper had a turn: it knows which lanes it has lost and which are paused."""
        self._unaware = {found for found in self._unaware if found[0] is not process}
        for aware in self.paused.values():
            aware.add(process)

    # -- handlers ------------------------------------------------------------------------------------------------------

    def began(self, hand: Hand, message: Message, everybody: Sequence[Process]) -> None:
        """A handler got a message, perhaps with others: was it its turn?"""
        process, now = hand.process, self.tables
        place, lease = _of(message), Lease(process.owner(message.group), message.fencing_token)
        what = f"{process!r} began {place}, attempt {message.attempt},"
        for key in ("", message.key):
            assert process not in self.paused.get((message.group, key), ()), f"{what} which is paused"
        if (process, message.group, message.key, lease.epoch) in self._unaware:
            return  # it can settle nothing, and will not go on after its keeper's next turn
        assert place in self._of_lane(message.group, message.key), f"{what} which is for another group"
        assert now.leases.get((message.group, message.key)) == lease, f"{what} without the lease"
        assert not now.settled(place), f"{what} which is settled"
        assert now.in_flight(place) == (lease.epoch, message.attempt), f"{what} without its mark"
        assert message.attempt == self.counted[place] + 1, f"{what} after {self.counted[place]} attempts"
        others = [
            other
            for one in everybody
            if not one.gone
            for other in one.hands
            if other is not hand and other.message is not None
            if any(
                attempt.state is State.RUNNING
                and _of(one)._replace(offset=message.offset) == place
                and one.fencing_token == lease.epoch
                for one, attempt in other.call
            )
        ]
        most = 2 if self.orders[message.group] == "concurrent" else 1
        assert len(others) < most, f"{what} while {others} had the lane"
        assert all(_of(one) != place for other in others for one, _ in other.call), f"{what} twice"
        if self.orders[message.group] == "strict":
            for lower in range(1, message.offset):
                earlier = place._replace(offset=lower)
                if self.targets.get((place.key, lower), place.group) != place.group:
                    continue
                with_it = earlier in [_of(one) for one, _ in hand.call]
                assert with_it or now.settled(earlier) or (earlier, lease) in self.acks, f"{what} before {lower}"
        self.counted[place] = message.attempt
        self.begun.add((place, lease.epoch, message.attempt))
        self.died.pop(place, None)

    def gave_back(self, hand: Hand) -> None:
        """A batch is over, or was given up: what it had begun and not decided goes back uncounted.

        Not where somebody else has the lane by now: he has counted it, as after a crash.
        """
        for message, attempt in hand.call if len(hand.call) > 1 else ():
            place, lease = _of(message), Lease(hand.process.owner(message.group), message.fencing_token)
            if attempt.state is State.SUPERSEDED and self.tables.leases.get((place.group, place.key)) == lease:
                self.counted[place] -= 1
        hand.call = []

    def decided(self, hand: Hand, outcome: str) -> None:
        """A handler is about to end: from now on this outcome is allowed."""
        message = hand.message
        if hand.attempt.state is State.SUPERSEDED:
            return
        place = _place(hand)
        if outcome in ("ack", "ack now", "effect", "own effect"):
            owner = hand.process.owner(place.group)
            self.acks.add((place, Lease(owner, message.fencing_token)))
            for other in hand.beside if outcome == "effect" else ():
                self.acks.add((Place(other.group, other.key, other.offset), Lease(owner, other.fencing_token)))
        elif outcome == "reject":
            self.rejects.add((place, Lease(hand.process.owner(place.group), message.fencing_token)))
        elif outcome == "postpone":
            self.postpones[place] += 1

    def answered(self, place: Place, outcome: str, *, refused: bool) -> None:
        """A handler that settled explicitly has its answer."""
        if outcome in ("ack now", *COMMITTED) and not refused:
            assert self.tables.settled(place), f"{place} was confirmed, and is not settled"

    # -- tables --------------------------------------------------------------------------------------------------------

    def look(self, actor: Process | None, everybody: Sequence[Process], steered: Steered | None = None) -> None:
        """Compare with the last look; in between, at most one process or operator did anything."""
        was, now = self.tables, Tables.read(self.raw)
        if steered is not None:
            self._steered(was, now, steered, everybody)
        self._log(was, now)
        self._purges(was, now)
        self._leases(was, now, everybody, steered)
        self._writes(was, now, actor, steered)
        self._settlements(was, now, steered)
        self._dead_letters(was, now)
        self.tables = now

    def _steered(self, was: Tables, now: Tables, steered: Steered, everybody: Sequence[Process]) -> None:
        """The operator's verb did to these lanes what it says, and nothing else."""
        if steered.verb == "delete":
            self.deleted.add(steered.group)
        for key, watermark in steered.watermarks.items():
            lane = (steered.group, key)
            reached = now.watermark(*lane)
            assert reached == watermark, f"after a {steered.verb} {lane} is at {reached}, not at {watermark}"
            self._taken_away(was, now, steered.verb, lane)
            before = was.leases.get(lane)
            if before is not None and now.leases.get(lane) != before:
                owners = (one for one in everybody if one.subscriptions and one.owner(lane[0]) == before.owner)
                self._unaware.update((process, *lane, before.epoch) for process in owners)
            if steered.verb in ("seek", "delete"):
                for place in self._of_lane(*lane):
                    self.lives[place] += was.settled(place) and not now.settled(place)
                    self.counted[place] = self._postponed[place] = 0  # it begins anew, with its first attempt
                    self.died.pop(place, None)
                continue
            for place in self._of_lane(*lane):
                skipped = steered.verb == "skip" and place.offset == steered.skipped
                assert now.settled(place) == (skipped or was.settled(place)), f"after a {steered.verb}: {place}"
            if before is not None and steered.verb != "pause":
                self._interrupted(was, now, lane, before, everybody)

    @staticmethod
    def _taken_away(was: Tables, now: Tables, verb: str, lane: tuple[str, str]) -> None:
        """Lease, offsets and deliveries of the lane are what the verb makes of them."""
        before, after = was.leases.get(lane), now.leases.get(lane)
        offsets, deliveries = now.of_lane(*lane)
        what = f"after a {verb} {lane}"
        if verb == "delete":
            assert (after, offsets, deliveries) == (None, None, {}), f"{what} left something"
            return
        if verb == "pause":
            assert (after, deliveries) == (before, was.of_lane(*lane)[1]), f"{what} has changed"
            return
        assert not after.owner, f"{what} is {after}'s"
        assert before is None or after.epoch == before.epoch + 1, f"{what} has {after} after {before}"
        if verb == "seek":
            assert (max(offsets.mark, offsets.acked), deliveries) == (offsets.acked, {}), f"{what} has a memory"

    def _interrupted(
        self, was: Tables, now: Tables, lane: tuple[str, str], before: Lease, everybody: Sequence[Process]
    ) -> None:
        """What was in flight was an attempt; and no crash, if its owner lives, which is what its rows say then."""
        self._lost(was, lane, before, everybody)
        for place in self._of_lane(*lane):
            if was.in_flight(place)[0] == before.epoch and not now.in_flight(place)[0]:
                self.died[place] = False

    def readers(self) -> Iterable[str]:
        """The groups that hold messages back."""
        return (group for group in GROUPS if group not in self.deleted)

    def _log(self, was: Tables, now: Tables) -> None:
        for key, offsets in self.published.items():
            head = now.heads.get(key)
            assert head is None or head == max(offsets), f"the head of {key} is {head} after {max(offsets)}"
            for offset, when in offsets.items():
                if offset in now.log[key]:
                    continue
                for group in self.readers():
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
            for group in self.readers():
                assert (group, key) not in self.paused, f"{key} was purged while {group} is paused there"
                assert was.watermark(group, key) == head, (
                    f"{key} was purged, and {group} is at {was.of_lane(group, key)}"
                )
                assert now.of_lane(group, key) == (None, {})
                assert (group, key) not in now.leases

    def _leases(self, was: Tables, now: Tables, everybody: Sequence[Process], steered: Steered | None = None) -> None:
        for lane, lease in now.leases.items():
            before = was.leases.get(lane)
            if lease == before:
                continue
            assert lease.epoch > self._epochs.get(lane, 0), f"{lane}: a fencing token was used twice"
            self._epochs[lane] = lease.epoch
            if before is not None and (steered is None or lane not in steered):
                self._lost(was, lane, before, everybody)

    def _lost(self, was: Tables, lane: tuple[str, str], before: Lease, everybody: Sequence[Process]) -> None:
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
            # Others that were given up do not count; it was alone also if it was given up itself and nobody wrote so.
            others = [hand for hand in hands if _place(hand) != place and hand.attempt.state is not State.SUPERSEDED]
            if epoch == before.epoch:
                self.died[place] = not others and any(_place(hand) == place for hand in hands)

    def _writes(self, was: Tables, now: Tables, actor: Process | None, steered: Steered | None) -> None:
        """Watermarks only grow, and nobody but the owner writes anything of a lane."""
        for key in now.heads:
            for group in self.readers():
                if steered is not None and (group, key) in steered:
                    continue
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

    def _settlements(self, was: Tables, now: Tables, steered: Steered | None) -> None:
        for place in self.places():
            lane = (place.group, place.key)
            settled = now.settled(place)
            effects = now.effects[place]
            assert effects <= self.lives[place] + settled, f"{effects} effects of {place}, settled: {settled}"
            if steered is not None and lane in steered:
                continue
            assert settled or not was.settled(place), f"{place} was settled, and is not any more"
            if settled and not was.settled(place):
                lease = was.leases.get(lane, Lease(*NOBODY))
                assert (place, lease) in self.acks or self._given_up(now, place, lease), (
                    f"{place} was settled by nobody: {lease}"
                )

    def _given_up(self, now: Tables, place: Place, lease: Lease) -> bool:
        """Whether it failed often enough, and is among the dead letters."""
        failed = (place, lease) in self.rejects or self.counted[place] >= ATTEMPTS
        return failed and any(letter.place == place and not letter.settled for letter in now.letters.values())

    def _dead_letters(self, was: Tables, now: Tables) -> None:
        for at, letter in was.letters.items():
            after = now.letters.get(at)
            assert letter.settled or after is not None, f"{letter} is gone"
            assert after is None or after.settled >= letter.settled, f"{letter} is back"
        waiting = Counter(letter.place for letter in now.letters.values() if not letter.settled)
        for at in now.letters.keys() - was.letters.keys():
            place, count, error, *_ = now.letters[at]
            what = f"{place} is a dead letter after {count} attempts ({error})"
            assert waiting[place] == 1, f"{what}, and there is another"
            assert not was.settled(place), f"{what}, and was settled"
            assert count == self.counted[place], f"{what}, not {self.counted[place]}"
            lease = was.leases.get((place.group, place.key), Lease(*NOBODY))
            assert (place, lease) in self.rejects or count >= ATTEMPTS, what
            assert error != CRASHED or self.died.get(place), f"{what}, but did not die alone"

    def drained(self) -> None:
        """Everything published was handled by every group, and nothing is left over."""
        for place in self.places():
            assert self.tables.settled(place), f"{place} was never handled"
        assert not self.tables.deliveries, f"left over: {self.tables.deliveries}"


def _place(hand: Hand) -> Place:
    return _of(hand.message)


def _of(message: Message) -> Place:
    return Place(message.group, message.key, message.offset)
