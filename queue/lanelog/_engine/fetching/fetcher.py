"""The fetcher: it finds lanes with new messages, and reads as many as memory may hold.

Owns the times of the polls and the amount of reading. Never decides which messages are handed out: `Dispatcher` does.
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
from lanelog._engine.fetching.pace import FetcherPace, MemberPolls, TailRead
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
    _polls: dict[Member, MemberPolls] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("fetcher")
        self.context.shortage.need(self.session)
        self._gaps = Gaps(self.session, self._check_server_identity)

    def turn(self, now: float) -> float:
        """Poll and fetch once for each member. Returns the seconds until the next turn."""
        delay = self.pace.idle_seconds
        members = self.context.members()
        for gone in self._polls.keys() - set(members):
            del self._polls[gone]
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

    def _check_server_identity(self) -> None:
        """Raise DatabaseError if memory was loaded again since the session was vouched for.

        To be called between an answer and its use. A statement may hang in a server that was replaced meanwhile, and
        be answered at last: its rows must not get into lanes that were loaded from the server after it.
        """
        self.context.check_generation(self.session, self._generation)

    def _serve(self, member: Member, now: float) -> float:
        polls = self._polls.get(member)
        if polls is None:
            backoff = Backoff(first=self.pace.soon_seconds, most=member.config.poll_interval)
            polls = self._polls[member] = MemberPolls(backoff, KnownHeads(self.pace.digests))
        if member.fetching.take_poll_request():
            polls.next_poll, polls.notified = min(polls.next_poll, now), True
        if member.fetching.take_hint() and (allowed := polls.allowance.free_at(now)) < polls.next_poll:
            polls.next_poll, polls.hinted, polls.notified = allowed, True, True
        self._revive(member, now)
        fed = now >= polls.next_poll and self._fed(member, polls)
        if now >= polls.next_poll and not fed and not self._read_instead(member, polls):
            self._poll(member, polls)
        progress = self._fetch(member)
        if progress:
            polls.found(news=True)
            return 0.0
        if fed:  # a poll would find nothing of use, and a change of any lane wakes the fetcher
            polls.found(news=False)
        due = member.fetching.next_due()
        now = time.monotonic()
        # An overdue poll of a notified member runs at once, also after a tail read. Any other one waits an interval.
        until_poll = max(0.0, polls.next_poll - now) or (0.0 if polls.notified else polls.interval)
        return until_poll if due is None else max(0.0, min(until_poll, due - now))

    def _fed(self, member: Member, polls: MemberPolls) -> bool:
        """Whether every lane has known messages left, so that a poll is useless. The check also delays polls."""
        began = time.monotonic()
        fed = member.fetching.all_fed()
        ended = time.monotonic()
        polls.pay(began, ended)
        if fed:
            polls.hinted = polls.notified = False
            polls.next_poll = ended + max(self.pace.soon_seconds, self.pace.poll_cycle.rest(ended - began))
        return fed

    def _poll(self, member: Member, polls: MemberPolls) -> None:
        began = time.monotonic()
        read, polls.early = TailRead(polls.early), {}  # after an error, it is unknown whether the digests count them
        risen = polls.known.changed(self.session, member, self._generation, notified=polls.notified)
        published = risen is None or bool(risen.named or risen.among)
        if risen and risen.named:
            self._read_named_tails(member, polls, risen, read)
        keys = None if risen is None else _heads_to_read(risen, read)
        news = bool(read.rows)
        if keys is None or keys:
            news |= polls.known.read(self.session, member, keys, self._check_server_identity)
        polls.tail_reads = 0
        if ahead := member.fetching.take_ahead():
            self._gaps.check_heads(member, ahead)
        ended = time.monotonic()
        polls.found(news=news)
        polls.costs.append(ended - began)
        polls.pay(began, ended, read=bool(read.rows))
        polls.hinted = polls.notified = False
        cycle = self.pace.poll_cycle if published else self.pace.quiet_cycle
        polls.next_poll = ended + max(polls.interval, cycle.rest(min(polls.costs)))

    def _read_named_tails(self, member: Member, polls: MemberPolls, risen: Risen, read: TailRead) -> None:
        """Read the tails of the lanes that the digests name, and add to `read`, which was read before the digests.

        Rows that were read before a digest are included in its count. A lane with as many new rows has no more.
        """
        busy = member.fetching.busy_last
        polls.busy_first = polls.busy_first or any(each.key in busy for each in risen.named)
        named = [each.key for each in risen.named if read.rows.get(each.key, 0) < each.risen]
        lanes = member.fetching.at_head(named, self.pace.fetch_lanes)
        try:
            found = self._read_tails(member, lanes) if lanes else TailRead()
        except BaseException:
            polls.known.forget()  # what the digests count was not read
            raise
        for key, rows in found.rows.items():
            read.rows[key] = read.rows.get(key, 0) + rows

    def _read_instead(self, member: Member, polls: MemberPolls) -> bool:
        """Read tails instead of a poll, if that may do for a member that was notified. False: it takes a poll."""
        if not polls.notified:
            return False
        if lanes := member.fetching.all_at_head(self.pace.fetch_lanes):
            return self._read_all_tails(member, polls, lanes)
        return polls.busy_first and not polls.early and self._read_busy_tails(member, polls)

    def _read_all_tails(self, member: Member, polls: MemberPolls, lanes: Sequence[Lane]) -> bool:
        """Read the tails of all lanes, which are few."""
        if polls.tail_reads >= self.pace.tail_reads:
            return False
        began = time.monotonic()
        read = self._read_tails(member, lanes)
        ended = time.monotonic()
        cost = polls.pay(began, ended, read=bool(read.rows))
        if read.unsure:
            return False
        polls.tail_reads = polls.tail_reads + 1 if read.rows else self.pace.tail_reads
        polls.found(news=bool(read.rows))
        polls.hinted = polls.notified = False
        polls.next_poll = ended + max(polls.interval, self.pace.poll_cycle.rest(cost))
        return True

    def _read_busy_tails(self, member: Member, polls: MemberPolls) -> bool:
        """Read the tails of the lanes that were busy last. A message of one of them need not wait for the digests.

        Others may have risen, too. So a poll still follows, a moment later: their mark is written first.
        """
        lanes = member.fetching.at_head(member.fetching.busy_last, self.pace.fetch_lanes)
        if not lanes:
            return False
        began = time.monotonic()
        polls.early = self._read_tails(member, lanes).rows
        ended = time.monotonic()
        polls.busy_first = bool(polls.early)
        polls.pay(began, ended, read=polls.busy_first)
        if polls.busy_first:
            polls.next_poll = ended + self.pace.after_busy_seconds
        return polls.busy_first

    def _read_tails(self, member: Member, lanes: Sequence[Lane]) -> TailRead:
        """Read the rows after the cursors of lanes that have handed out all they know of.

        This saves the query for their heads. A lane is left to the next poll if memory has no room, or if the answer
        may be incomplete: it has a hole, or rows were left out.
        """
        room = member.config.prefetch - member.budget.messages
        space = member.config.prefetch_bytes - member.budget.payload_bytes
        if min(member.rules.batch_size, room // len(lanes)) <= 1 or space <= 0:
            return TailRead(unsure=len(lanes))  # one row does not show whether it is the last
        wanted = self._wanted(lanes, member.rules.batch_size, room)
        largest = space // sum(each.limit for each in wanted)
        found = fetches.following(self.session, member.at, wanted, largest=largest)
        self._check_server_identity()
        read = TailRead()
        for lane, behind, rows in zip(lanes, wanted, found, strict=True):
            complete = not rows or _complete(behind.offset, rows)
            if rows and complete:
                read.rows[lane.key] = len(rows)
                member.fetching.fetched(lane, behind.offset, rows)
            read.unsure += not complete or len(rows) == behind.limit
        return read

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
            self._check_server_identity()
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
        """The rows to ask for. A head may have risen since the last poll, so the lanes share what room is left."""
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
        self._check_server_identity()
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
        self._check_server_identity()
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
                self._log_vanished(member, lane, gone)
            member.fetching.revived(lane, rows, gone)

    def _log_vanished(self, member: Member, lane: Lane, gone: list[int]) -> None:
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


def _heads_to_read(risen: Risen, read: TailRead) -> list[str]:
    """Return the keys whose heads must be read. If a lane's new rows explain its part's change, the part is left out.

    When it has fewer, some were read earlier, or other lanes of its part have risen, too.
    """
    unexplained = [each.part for each in risen.named if read.rows.get(each.key, 0) < each.risen]
    return [*risen.among, *itertools.chain.from_iterable(unexplained)]
