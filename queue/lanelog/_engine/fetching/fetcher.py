"""The fetcher: it looks for lanes with new messages, and reads as many as memory may hold.

Owns the times of the looks and the amount of reading. Never decides which messages are handed out: `Dispatcher` does.
Writes nothing. It is one thread and one connection of a client.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._engine.fetching.gaps import Gaps
from lanelog._engine.fetching.heads import KnownHeads
from lanelog._engine.fetching.pace import FetcherPace, Glance, Pace
from lanelog._facts.engine import fetcher as facts
from lanelog._stores import fetches, offsets
from lanelog._stores.fetches import Behind, Fetched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Session
    from lanelog._engine.context import EngineContext
    from lanelog._engine.fetching.heads import Risen
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.member.member import Member

LOOK_SHARE = 39.0
"""A look may take a fortieth of the time: after one of d seconds, the next is 39 d later at the earliest."""

QUIET_SHARE = 79.0
"""The same for a look that ended with the digest: an eightieth. An idle worker asks for little else."""

LANES_A_FETCH = 40
"""Who holds no more lanes reads behind all of them at once when something was published, and asks for no digest."""

AFTER_BUSY = 0.005
"""Seconds from rows of the lanes that were busy last to the look for the others: those messages can start meanwhile."""

GLANCES = 10
"""So many glances in a row at most, or one that found nothing. Then comes a look: only a look finds a lane set back."""

IDLE = 2.0
AGAIN = 0.1
"""Seconds until a session that the ground does not vouch for yet is tried again."""


@define(eq=False)
class Fetcher:
    """Turns of the fetcher."""

    context: EngineContext
    pace: FetcherPace = field(factory=FetcherPace)
    session: Session = field(init=False)
    _gaps: Gaps = field(init=False)
    _generation: int = field(default=0, init=False)  # of memory, when the ground vouched for the session
    _paces: dict[Member, Pace] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("fetcher")
        self.context.shortage.need(self.session)
        self._gaps = Gaps(self.session, self._check_ground)

    def turn(self, now: float) -> float:
        """Look and fetch once for each member. Returns the seconds until the next turn."""
        delay = IDLE
        members = self.context.members()
        for gone in self._paces.keys() - set(members):
            del self._paces[gone]
        if self.context.shortage.aside and members and self.session.ensure():
            members[0].signals.wake_settler()  # which has waited for this
        for member in members:
            if not member.fetching.wanted(now):
                continue
            with self.context.watch(member, "fetcher", self.session):
                self._generation = self.context.vouched(self.session)
                if not self._generation:
                    delay = min(delay, AGAIN)  # the keeper wakes this loop
                    continue
                with self.session.pinned():
                    delay = min(delay, self._serve(member, now))
        self.context.raise_deferred("fetcher")
        self.session.ping_if_idle()
        return delay

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    def _check_ground(self) -> None:
        """Raise DatabaseError if memory was loaded again since the session was vouched for.

        To be called between an answer and its use. A statement may hang in a server that was replaced meanwhile, and
        be answered at last: its rows must not get into lanes that were loaded from the server after it.
        """
        self.context.check_generation(self.session, self._generation)

    def _serve(self, member: Member, now: float) -> float:
        pace = self._paces.get(member)
        if pace is None:
            pace = self._paces[member] = Pace(self.pace.soon, KnownHeads(self.pace.digests))
        if member.fetching.take_look_request():
            pace.next_look, pace.told = min(pace.next_look, now), True
        if member.fetching.take_hint() and (allowed := pace.allowance.free_at(now)) < pace.next_look:
            pace.next_look, pace.hinted, pace.told = allowed, True, True
        self._revive(member, now)
        fed = now >= pace.next_look and self._fed(member, pace)
        if now >= pace.next_look and not fed and not self._glanced(member, pace):
            self._look(member, pace)
        progress = self._fetch(member)
        if progress:
            pace.interval = self.pace.soon
            return 0.0
        if fed:  # a look would find nothing of use, and a change of any lane wakes the fetcher
            pace.interval = min(member.config.poll_interval, pace.interval * 2)
        due = member.fetching.next_due()
        now = time.monotonic()
        # The look behind a glance is due soon after it. When it is overdue by now, it must not wait as others may.
        until_look = max(0.0, pace.next_look - now) or (0.0 if pace.told else pace.interval)
        return until_look if due is None else max(0.0, min(until_look, due - now))

    def _fed(self, member: Member, pace: Pace) -> bool:
        """Whether a look would find nothing of use. This question costs time, too, so it also delays the next look."""
        began = time.monotonic()
        fed = member.fetching.all_fed()
        ended = time.monotonic()
        pace.pay(began, ended)
        if fed:
            pace.hinted = pace.told = False
            pace.next_look = ended + max(self.pace.soon, LOOK_SHARE * (ended - began))
        return fed

    def _look(self, member: Member, pace: Pace) -> None:
        began = time.monotonic()
        read, pace.early = Glance(pace.early), {}  # after an error, nobody knows whether the digests count them
        risen = pace.known.changed(self.session, member, self._generation, told=pace.told)
        published = risen is None or bool(risen.named or risen.among)
        if risen and risen.named:
            self._glance_at(member, pace, risen, read)
        keys = None if risen is None else _heads_to_read(risen, read)
        news = bool(read.rows)
        if keys is None or keys:
            news |= pace.known.read(self.session, member, keys, self._check_ground)
        pace.glances = 0
        if ahead := member.fetching.take_ahead():
            self._gaps.check_heads(member, ahead)
        ended = time.monotonic()
        pace.interval = self.pace.soon if news else min(member.config.poll_interval, pace.interval * 2)
        pace.costs.append(ended - began)
        pace.pay(began, ended, read=bool(read.rows))
        pace.hinted = pace.told = False
        pace.next_look = ended + max(pace.interval, (LOOK_SHARE if published else QUIET_SHARE) * min(pace.costs))

    def _glance_at(self, member: Member, pace: Pace, risen: Risen, read: Glance) -> None:
        """Read behind the lanes that the digests name. `read`: what was read before them; more is added to it.

        What was read before a digest is among what has risen by then. So a lane with as many new rows has no more.
        """
        busy = member.fetching.busy_last
        pace.busy_first = pace.busy_first or any(each.key in busy for each in risen.named)
        named = [each.key for each in risen.named if read.rows.get(each.key, 0) < each.risen]
        lanes = member.fetching.at_head(named, LANES_A_FETCH)
        try:
            found = self._glance(member, lanes) if lanes else Glance()
        except BaseException:
            pace.known.forget()  # what the digests tell was not read
            raise
        for key, rows in found.rows.items():
            read.rows[key] = read.rows.get(key, 0) + rows

    def _glanced(self, member: Member, pace: Pace) -> bool:
        """Read behind lanes without a look, if that may do for a member that was told. False: it takes a look."""
        if not pace.told:
            return False
        if lanes := member.fetching.all_at_head(LANES_A_FETCH):
            return self._glance_at_all(member, pace, lanes)
        return pace.busy_first and not pace.early and self._glance_at_busy(member, pace)

    def _glance_at_all(self, member: Member, pace: Pace, lanes: Sequence[Lane]) -> bool:
        """Read behind all lanes, which are few."""
        if pace.glances >= GLANCES:
            return False
        began = time.monotonic()
        read = self._glance(member, lanes)
        ended = time.monotonic()
        cost = pace.pay(began, ended, read=bool(read.rows))
        if read.unsure:
            return False
        pace.glances = pace.glances + 1 if read.rows else GLANCES
        pace.interval = self.pace.soon if read.rows else min(member.config.poll_interval, pace.interval * 2)
        pace.hinted = pace.told = False
        pace.next_look = ended + max(pace.interval, LOOK_SHARE * cost)
        return True

    def _glance_at_busy(self, member: Member, pace: Pace) -> bool:
        """Read behind the lanes that were busy last. If one is busy again, its message need not wait for the digests.

        Others may have risen, too. So the look comes all the same, but not beside the write that such a message awaits.
        """
        lanes = member.fetching.at_head(member.fetching.busy_last, LANES_A_FETCH)
        if not lanes:
            return False
        began = time.monotonic()
        pace.early = self._glance(member, lanes).rows
        ended = time.monotonic()
        pace.busy_first = bool(pace.early)
        pace.pay(began, ended, read=pace.busy_first)
        if pace.busy_first:
            pace.next_look = ended + AFTER_BUSY
        return pace.busy_first

    def _glance(self, member: Member, lanes: Sequence[Lane]) -> Glance:
        """Read what is behind lanes that have handed out all they know of.

        It saves the question for their heads: a row that is there is the news, and what is to be read. A lane is left
        to a look where memory has no room, and where the answer may hide something: a hole, or rows that were left out.
        """
        room = member.config.prefetch - member.budget.messages
        space = member.config.prefetch_bytes - member.budget.payload_bytes
        if min(member.rules.batch_size, room // len(lanes)) <= 1 or space <= 0:
            return Glance(unsure=len(lanes))  # whoever reads one row cannot tell whether it is the last
        wanted = self._wanted(lanes, member.rules.batch_size, room)
        largest = space // sum(each.limit for each in wanted)
        found = fetches.following(self.session, member.at, wanted, largest=largest)
        self._check_ground()
        glance = Glance()
        for lane, behind, rows in zip(lanes, wanted, found, strict=True):
            complete = not rows or _complete(behind.offset, rows)
            if rows and complete:
                glance.rows[lane.key] = len(rows)
                member.fetching.fetched(lane, behind.offset, rows)
            glance.unsure += not complete or len(rows) == behind.limit
        return glance

    def _fetch(self, member: Member) -> bool:
        """Read rows for the lanes that want some. True when a row was read."""
        config, budget, limit = member.config, member.budget, member.rules.batch_size
        room = config.prefetch - budget.messages
        space = config.prefetch_bytes - budget.payload_bytes
        if room <= 0 or space <= 0:
            self._make_room(member)
            return False
        lanes = member.fetching.take_needing_fetch(LANES_A_FETCH, room)
        if not lanes:
            return False
        wanted = self._wanted(lanes, limit, room)
        largest = space // sum(each.limit for each in wanted)
        progress = False
        try:
            found = fetches.following(self.session, member.at, wanted, largest=largest)
            self._check_ground()
            for lane, behind, read in zip(lanes, wanted, found, strict=True):
                rows = self._contiguous(member, lane, behind.offset, read)
                member.fetching.fetched(lane, behind.offset, rows)
                progress = progress or bool(rows)
        except BaseException:
            for lane in lanes:  # `take_needing_fetch` has removed them from the queue
                member.fetching.still_needs_fetch(lane)
            raise
        return progress

    @staticmethod
    def _wanted(lanes: Sequence[Lane], limit: int, room: int) -> list[Behind]:
        """The rows to ask for. A head may have risen since the last look, so the lanes share what room is left."""
        spare = max(0, room - sum(lane.unread for lane in lanes)) // len(lanes)
        wanted = []
        for lane in lanes:
            rows = max(1, min(limit, lane.unread + spare, room))
            room -= rows
            wanted.append(Behind(lane.key, lane.state.cursor, rows))
        return wanted

    def _make_room(self, member: Member) -> None:
        # Lanes that only read ahead get no room this way: busy lanes would evict and read in turns.
        if member.runs.empty() and member.fetching.wants_room():
            for each in self.context.members():
                if each.budget is member.budget:  # the topics of one subscription share its memory
                    each.fetching.evict()

    def _contiguous(self, member: Member, lane: Lane, cursor: int, rows: list[Fetched]) -> list[Fetched]:
        """The rows up to the first hole, or to the first payload that does not fit. The next fetch begins there."""
        if rows and _complete(cursor, rows):
            return rows  # nearly all answers are like this
        whole: list[Fetched] = []
        for row in rows:
            if row.offset != cursor + 1 + len(whole):
                break
            complete = self._with_payload(member, row, first=not whole)
            if complete is None:
                if not whole:
                    # This comes before the eviction: the lane must stand before the evicted lanes in the queue.
                    member.fetching.still_needs_fetch(lane)
                    self._make_room(member)
                break
            whole.append(complete)
        if not whole and (not rows or rows[0].offset != cursor + 1):
            self._gaps.check(member, lane, cursor + 1)
        return whole

    def _with_payload(self, member: Member, row: Fetched, *, first: bool) -> Fetched | None:
        """The row with its payload. None when that must wait until memory has room."""
        if row.payload is not None or row.target_group not in ("", member.group):
            return row
        budget = member.budget
        fits = budget.payload_bytes + row.payload_bytes <= member.config.prefetch_bytes
        if not fits and not (first and budget.messages == 0):
            return None
        if not first:
            return None  # in the next fetch it comes first, and the rows before it are counted by then
        payload = fetches.payload(self.session, member.topic, row.key, row.offset)
        self._check_ground()
        return row._replace(payload=payload) if payload is not None else None

    def _revive(self, member: Member, now: float) -> None:
        """Read the bodies of due messages that wait for another attempt, as far as memory has room."""
        room = member.config.prefetch - member.budget.messages
        if member.config.prefetch_bytes <= member.budget.payload_bytes:
            room = 0
        wanted = member.fetching.take_needing_payload(now, LANES_A_FETCH, room)
        if not wanted:
            return
        try:
            self._read_again(member, wanted)
        except BaseException:
            # `take_needing_payload` has removed them from the list.
            member.fetching.still_needs_payload(lane for lane, _ in wanted)
            raise

    def _read_again(self, member: Member, wanted: list[tuple[Lane, list[int]]]) -> None:
        config, budget = member.config, member.budget
        points = [(lane.key, offset) for lane, due in wanted for offset in due]
        largest = max(0, config.prefetch_bytes - budget.payload_bytes) // len(points)
        found = fetches.exact(self.session, member.at, points, largest=largest)
        self._check_ground()
        for lane, due in wanted:
            rows: list[Fetched] = []
            gone: list[int] = []
            for offset in due:
                row = found.get((lane.key, offset))
                if row is None:
                    gone.append(offset)
                    continue
                complete = self._with_payload(member, row, first=not rows)
                if complete is None:
                    member.fetching.still_needs_payload([lane])  # the next read begins with this payload
                    if not rows:
                        self._make_room(member)
                    break
                rows.append(complete)
            if gone:
                self._tell_vanished(member, lane, gone)
            member.fetching.revived(lane, rows, gone)

    def _tell_vanished(self, member: Member, lane: Lane, gone: list[int]) -> None:
        """Log an error for each missing message above the floor. At or below it, a deleted dead letter is expected."""
        topic, group = member.topic, member.group
        floor = offsets.floors(self.session, topic, [lane.key]).get(lane.key)
        for offset in gone:
            if floor is None or offset > floor.floor:
                facts.message_vanished(topic=topic, key=lane.key, group=group, offset=offset)


def _complete(cursor: int, rows: Sequence[Fetched]) -> bool:
    """Whether these rows are all there is from `cursor` to the last of them, with their payloads."""
    # Offsets rise and none comes twice, so there is no hole.
    return rows[-1].offset == cursor + len(rows) and None not in [row.payload for row in rows]


def _heads_to_read(risen: Risen, read: Glance) -> list[str]:
    """The keys whose heads must be read. Who has as many new rows as its part says has risen alone.

    When it has fewer, some were read earlier, or other lanes of its part have risen, too.
    """
    doubted = [each.part for each in risen.named if read.rows.get(each.key, 0) < each.risen]
    return [*risen.among, *itertools.chain.from_iterable(doubted)]
