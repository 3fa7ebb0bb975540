"""The fetcher: it looks for lanes with new messages, and reads as many as memory may hold.

Owns the times of the looks and the amount of reading. Never decides which messages are handed out: `Dispatcher` does.
Writes nothing. It is one thread and one connection of a client.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._base.backoff import Backoff
from lanelog._engine.fetching.gaps import Gaps
from lanelog._engine.fetching.heads import KnownHeads
from lanelog._engine.fetching.pace import FetcherPace, Glance, MemberLooks
from lanelog._facts.engine import fetcher as facts
from lanelog._stores.consumers import offsets
from lanelog._stores.log import fetches
from lanelog._stores.log.fetches import Behind, Fetched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.fetching.heads import Risen
    from lanelog._engine.lane.lane import Lane
    from lanelog._engine.member.member import Member


@define(eq=False)
class Fetcher:
    """Turns of the fetcher."""

    context: EngineContext
    pace: FetcherPace = field(factory=FetcherPace)
    session: Session = field(init=False)
    _gaps: Gaps = field(init=False)
    _generation: int = field(default=0, init=False)  # of memory, when its server was vouched for
    _looks: dict[Member, MemberLooks] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("fetcher")
        self.context.shortage.need(self.session)
        self._gaps = Gaps(self.session, self._check_ground)

    def turn(self, now: float) -> float:
        """Look and fetch once for each member. Returns the seconds until the next turn."""
        delay = self.pace.idle_seconds
        members = self.context.members()
        for gone in self._looks.keys() - set(members):
            del self._looks[gone]
        if self.context.shortage.aside and members and self.session.ensure():
            members[0].signals.wake_settler()  # which has waited for this
        for member in members:
            if not member.fetching.wanted(now):
                continue
            with self.context.watch(member, "fetcher", self.session):
                self._generation = self.context.vouched(self.session)
                if not self._generation:
                    delay = min(delay, self.pace.unvouched_seconds)  # the keeper wakes this loop
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
        looks = self._looks.get(member)
        if looks is None:
            backoff = Backoff(first=self.pace.soon_seconds, most=member.config.poll_interval)
            looks = self._looks[member] = MemberLooks(backoff, KnownHeads(self.pace.digests))
        if member.fetching.take_look_request():
            looks.next_look, looks.told = min(looks.next_look, now), True
        if member.fetching.take_hint() and (allowed := looks.allowance.free_at(now)) < looks.next_look:
            looks.next_look, looks.hinted, looks.told = allowed, True, True
        self._revive(member, now)
        fed = now >= looks.next_look and self._fed(member, looks)
        if now >= looks.next_look and not fed and not self._glanced(member, looks):
            self._look(member, looks)
        progress = self._fetch(member)
        if progress:
            looks.found(news=True)
            return 0.0
        if fed:  # a look would find nothing of use, and a change of any lane wakes the fetcher
            looks.found(news=False)
        due = member.fetching.next_due()
        now = time.monotonic()
        # The look behind a glance is due soon after it. When it is overdue by now, it must not wait as others may.
        until_look = max(0.0, looks.next_look - now) or (0.0 if looks.told else looks.interval)
        return until_look if due is None else max(0.0, min(until_look, due - now))

    def _fed(self, member: Member, looks: MemberLooks) -> bool:
        """Whether a look would find nothing of use. This question costs time, too, so it also delays the next look."""
        began = time.monotonic()
        fed = member.fetching.all_fed()
        ended = time.monotonic()
        looks.pay(began, ended)
        if fed:
            looks.hinted = looks.told = False
            looks.next_look = ended + max(self.pace.soon_seconds, self.pace.look_cycle.rest(ended - began))
        return fed

    def _look(self, member: Member, looks: MemberLooks) -> None:
        began = time.monotonic()
        read, looks.early = Glance(looks.early), {}  # after an error, nobody knows whether the digests count them
        risen = looks.known.changed(self.session, member, self._generation, told=looks.told)
        published = risen is None or bool(risen.named or risen.among)
        if risen and risen.named:
            self._glance_at(member, looks, risen, read)
        keys = None if risen is None else _heads_to_read(risen, read)
        news = bool(read.rows)
        if keys is None or keys:
            news |= looks.known.read(self.session, member, keys, self._check_ground)
        looks.glances = 0
        if ahead := member.fetching.take_ahead():
            self._gaps.check_heads(member, ahead)
        ended = time.monotonic()
        looks.found(news=news)
        looks.costs.append(ended - began)
        looks.pay(began, ended, read=bool(read.rows))
        looks.hinted = looks.told = False
        cycle = self.pace.look_cycle if published else self.pace.quiet_cycle
        looks.next_look = ended + max(looks.interval, cycle.rest(min(looks.costs)))

    def _glance_at(self, member: Member, looks: MemberLooks, risen: Risen, read: Glance) -> None:
        """Read behind the lanes that the digests name. `read`: what was read before them; more is added to it.

        What was read before a digest is among what has risen by then. So a lane with as many new rows has no more.
        """
        busy = member.fetching.busy_last
        looks.busy_first = looks.busy_first or any(each.key in busy for each in risen.named)
        named = [each.key for each in risen.named if read.rows.get(each.key, 0) < each.risen]
        lanes = member.fetching.at_head(named, self.pace.fetch_lanes)
        try:
            found = self._glance(member, lanes) if lanes else Glance()
        except BaseException:
            looks.known.forget()  # what the digests tell was not read
            raise
        for key, rows in found.rows.items():
            read.rows[key] = read.rows.get(key, 0) + rows

    def _glanced(self, member: Member, looks: MemberLooks) -> bool:
        """Read behind lanes without a look, if that may do for a member that was told. False: it takes a look."""
        if not looks.told:
            return False
        if lanes := member.fetching.all_at_head(self.pace.fetch_lanes):
            return self._glance_at_all(member, looks, lanes)
        return looks.busy_first and not looks.early and self._glance_at_busy(member, looks)

    def _glance_at_all(self, member: Member, looks: MemberLooks, lanes: Sequence[Lane]) -> bool:
        """Read behind all lanes, which are few."""
        if looks.glances >= self.pace.glances:
            return False
        began = time.monotonic()
        read = self._glance(member, lanes)
        ended = time.monotonic()
        cost = looks.pay(began, ended, read=bool(read.rows))
        if read.unsure:
            return False
        looks.glances = looks.glances + 1 if read.rows else self.pace.glances
        looks.found(news=bool(read.rows))
        looks.hinted = looks.told = False
        looks.next_look = ended + max(looks.interval, self.pace.look_cycle.rest(cost))
        return True

    def _glance_at_busy(self, member: Member, looks: MemberLooks) -> bool:
        """Read behind the lanes that were busy last. If one is busy again, its message need not wait for the digests.

        Others may have risen, too. So the look comes all the same, but not beside the write that such a message awaits.
        """
        lanes = member.fetching.at_head(member.fetching.busy_last, self.pace.fetch_lanes)
        if not lanes:
            return False
        began = time.monotonic()
        looks.early = self._glance(member, lanes).rows
        ended = time.monotonic()
        looks.busy_first = bool(looks.early)
        looks.pay(began, ended, read=looks.busy_first)
        if looks.busy_first:
            looks.next_look = ended + self.pace.after_busy_seconds
        return looks.busy_first

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
        lanes = member.fetching.take_needing_fetch(self.pace.fetch_lanes, room)
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
        wanted = member.fetching.take_needing_payload(now, self.pace.fetch_lanes, room)
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
