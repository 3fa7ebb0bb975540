"""Dead letters: a copy into `topic + suffix` and the settlement for this group, in one transaction for each message.

Owns the transaction around the copy (`_log/bury`), and what is announced. Never decides which message is given up. It
runs in the settler's thread, between two flushes.

Lock order: dead letter head X (skipped when locked, tried again later) → lease S → delivery → messages → history. A
crash before the COMMIT leaves the message in flight: it is counted and delivered again. After an unanswered COMMIT the
move is repeated. It finds the copy by its derived id, so the repetition is harmless. The original stays for the other
groups.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attrs import define, field

from lanelog._base.text import summary
from lanelog._database import Lock, codes
from lanelog._engine.delivery import message_of
from lanelog._facts.engine import settler as facts
from lanelog._facts.fact import AttemptFields
from lanelog._log import bury, repair
from lanelog._log.bury import DeadLetterTopics
from lanelog._stores.consumers import deliveries, history
from lanelog._stores.consumers.history import Ended
from lanelog._stores.log import dead_letters, partitions
from lanelog._stores.members import leases
from lanelog.errors import DatabaseError, LanelogError

if TYPE_CHECKING:
    from lanelog._database import Executor, Session
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.lane.writes import DeadLetterWrite
    from lanelog._engine.member.member import Member


@define(eq=False)
class DeadLetters:
    """Moves messages to the dead letters."""

    context: EngineContext
    session: Session
    turn_seconds: float = 0.05
    """Their longest time between two flushes. A flood of them must not stall the other outcomes."""
    _topics: DeadLetterTopics = field(factory=DeadLetterTopics)
    _generation: int = 0  # the generation of memory for which `_topics` holds

    def turn(self, member: Member) -> bool:
        """Move the waiting messages, for a bounded time. True when something was done."""
        until = time.monotonic() + self.turn_seconds
        done = False
        if not member.dead_letters:
            return False
        generation = self.context.vouched(self.session)
        if not generation:
            return False
        if generation != self._generation:
            self._topics, self._generation = DeadLetterTopics(), generation
        for _ in range(len(member.dead_letters)):
            if time.monotonic() > until:
                return True
            dead_letter = member.dead_letters.popleft()
            if member.writing.is_gone(dead_letter):
                continue
            try:
                with self.session.pinned():
                    moved = self._move(member, dead_letter)
            except LanelogError:
                member.dead_letters.append(dead_letter)
                raise
            if moved:
                done = True
            else:
                member.dead_letters.append(dead_letter)
        return done

    def left(self) -> bool:
        """Whether messages still wait to be moved, say for a head that another transaction has."""
        return any(member.dead_letters for member in self.context.members())

    def _move(self, member: Member, dead_letter: DeadLetterWrite, *, repaired: bool = False) -> bool:
        """Move one message. False: try it again later, say because its dead letter lane is locked.

        `repaired`: the dead letter lane was checked and repaired already.
        """
        dead_topic = member.config.dead_letter_topic(member.topic)
        assert dead_topic is not None  # noqa: S101 - for the type checker: without one nothing is buried
        term = dead_letter.term
        key = term.key
        self._topics.prepare(self.session, dead_topic)
        try:
            with self.session.transaction() as cx:
                self.context.check_generation(self.session, self._generation)
                head = partitions.head(cx, dead_topic, key, Lock.FREE)
                outcome = None if head is None else self._copy(cx, member, dead_letter, dead_topic, head)
        except DatabaseError as error:
            # The copy's id was looked up before, so its offset is the duplicate, and a repetition would not help.
            if error.code != codes.DUPLICATE or repaired:
                raise
            seen_to = repair.repair_lane(self.session, dead_topic, key) is not None
            return seen_to and self._move(member, dead_letter, repaired=True)
        if outcome is None:
            if key not in partitions.heads(self.session, dead_topic, [key]):
                self.context.appender.ensure_lanes(dead_topic, [key])
                return self._move(member, dead_letter)
            return False
        if outcome == "lost":
            member.lose_lane(term, "its lease has another owner or epoch")
            return True
        if not member.writing.buried(dead_letter, term):
            return False
        self._announce(member, dead_letter, dead_topic, outcome)
        self.context.appender.committed(dead_topic)
        return True

    def _copy(self, cx: Executor, member: Member, dead_letter: DeadLetterWrite, dead_topic: str, head: int) -> str:
        """Settle and copy inside the transaction, under the dead letter head's lock: "buried", "vanished" or "lost"."""
        topic, term = member.topic, dead_letter.term
        lane = member.at.lane(term.key)
        held = self.context.fenced(leases.fence(cx, member.at, member.owner, [term.key]))
        if held.get(term.key) != term.epoch:
            return "lost"
        deliveries.settle(cx, lane, dead_letter.offset)
        source = dead_letters.source_id(cx, topic, term.key, dead_letter.offset)
        if source is None or (dead_letter.row is not None and source != dead_letter.row.id):
            return "vanished"
        copied = bury.copy(
            cx,
            lane,
            dead_letter.offset,
            source,
            dead_topic=dead_topic,
            head=head,
            failures=dead_letter.failures,
            error=dead_letter.error,
        )
        if copied:
            partitions.set_head(cx, dead_topic, term.key, head + 1)
        self._remember(cx, member, dead_letter)
        return "buried"

    def _remember(self, cx: Executor, member: Member, dead_letter: DeadLetterWrite) -> None:
        if member.rules.history and dead_letter.attempt is not None:
            now = time.monotonic()
            row = dead_letter.attempt.left_as(dead_letter.ended, dead_letter.error, now)
            history.upsert(cx, member.at, member.owner, [row], now)

    def _announce(self, member: Member, dead_letter: DeadLetterWrite, dead_topic: str, outcome: str) -> None:
        context: AttemptFields = {
            "topic": member.topic,
            "key": dead_letter.term.key,
            "group": member.group,
            "offset": dead_letter.offset,
            "attempt": dead_letter.failures,
        }
        if outcome == "vanished":
            facts.message_vanished(**context, error=summary(dead_letter.error))
            return
        notices = member.signals.notices
        if dead_letter.ended is Ended.EXPIRED:
            facts.message_expired(notices, **context, dead_letter_topic=dead_topic)
        else:
            facts.message_dead_lettered(
                notices,
                **context,
                dead_letter_topic=dead_topic,
                error=summary(dead_letter.error),
                exc_info=dead_letter.raised,
            )
        hook = member.config.on_dead_letter
        if hook is not None and dead_letter.attempt is not None:
            message = message_of(dead_letter.attempt, member, self.context)
            member.later(lambda: hook(message, dead_letter.error))
