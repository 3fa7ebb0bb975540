"""The janitor: collection, purge of drained lanes, old heartbeats, history and dead letters, expired messages, audits.

Owns the order of these duties, and when each is asked. `duty` says what a duty is, and a module of this folder does
each. The janitor writes a group's own rows in five cases only: it purges a lane that all groups have drained, repairs a
lane whose tables contradict each other, deletes old history, deletes old heartbeats, and dead-letters expired messages
of a group without a living member.

It is one thread and one connection of a client. Several clients may do this at once: they skip each other's locks, or
find nothing left to do. If the account may not delete, the janitor logs that once, and leaves the work to the clients
of other accounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field, frozen

from lanelog._base.backoff import Backoff
from lanelog._database import codes
from lanelog._engine.cleanup.auditing import Audit
from lanelog._engine.cleanup.expired import Expiry
from lanelog._engine.cleanup.history_and_letters import HistoryRetention, LetterRetention
from lanelog._engine.cleanup.lane_purge import LanePurge
from lanelog._engine.cleanup.message_retention import MessageRetention
from lanelog._engine.cleanup.old_heartbeats import OldHeartbeats
from lanelog._facts.engine import janitor as facts
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from lanelog._database import Session
    from lanelog._engine.cleanup.duty import Duty
    from lanelog._engine.engine_context import EngineContext
    from lanelog._engine.member.member import Member


@frozen(kw_only=True)
class JanitorPace:
    """How often the janitor does its duties, and for how many lanes at once."""

    turn_seconds: float = 1.0
    """Seconds between two turns, when nothing more is ready."""
    held_back_seconds: float = 60.0
    """The longest wait before the next collection of a lane that another group holds back."""
    expired_seconds: float = 60.0
    """Seconds between two passes for the groups of a topic that have no living member."""
    behind_seconds: float = 60.0
    """A pass of the purge is late when it takes longer than this, and longer than `lane_idle_purge`."""
    purge_lanes: int = 100
    """The most lanes that a turn purges."""
    denied_seconds: float = 600.0
    """Seconds before a duty for which the account lacked a privilege is tried again."""


@define(eq=False)
class Janitor:
    """Turns of the janitor."""

    context: EngineContext
    pace: JanitorPace = field(factory=JanitorPace)
    session: Session = field(init=False)
    _topics: dict[str, dict[Duty, float]] = field(factory=dict)
    """The duties of each topic in their order, and until when (monotonic) the account lacks the privilege for one."""
    _generation: int = 0

    def __attrs_post_init__(self) -> None:
        self.session = self.context.database.session("janitor")

    def turn(self, now: float) -> float:
        """One bounded pass over every topic this client reads."""
        more = False
        if self._generation != self.context.server_identity.generation:
            if self._generation:
                self._topics.clear()  # this memory was true for the server before
            self._generation = self.context.server_identity.generation
        topics = {member.topic for member in self.context.members()}
        for gone in self._topics.keys() - topics:
            del self._topics[gone]
        if topics:
            self.session.ensure()  # a missing connection must show, even while nothing is to be collected
        for member in self.context.members():
            with self.context.watch(member, "janitor", self.session):
                if member.topic not in self._topics:
                    self._topics[member.topic] = self._duties()
                for duty, denied_until in self._topics[member.topic].items():
                    if now >= denied_until and duty.due(member, now):
                        more |= self._do(duty, member, now)
        self.context.raise_deferred("janitor")
        self.session.ping_if_idle()
        return 0.0 if more else self.pace.turn_seconds

    def close(self) -> None:
        """Give the connection back."""
        self.session.close()

    def _duties(self) -> dict[Duty, float]:
        context, pace = self.context, self.pace
        messages = MessageRetention(Backoff(first=pace.turn_seconds, most=pace.held_back_seconds))
        purge = LanePurge(
            context=context,
            messages=messages,
            least_seconds=pace.turn_seconds,
            behind_seconds=pace.behind_seconds,
            page_lanes=pace.purge_lanes,
        )
        letters = LetterRetention(context.database.config.user)
        expiry = Expiry(context=context, every_seconds=pace.expired_seconds)
        return dict.fromkeys((messages, purge, OldHeartbeats(), HistoryRetention(), letters, expiry, Audit()), 0.0)

    def _do(self, duty: Duty, member: Member, now: float) -> bool:
        """Do a duty, unless the account lacks the privilege. That is no fault: a consumer's account need not delete."""
        try:
            return duty.run(self.session, member, now)
        except DatabaseError as error:
            if error.code not in codes.DENIED:
                raise
            duties = self._topics[member.topic]
            if not duties[duty]:
                facts.deletion_denied(topic=member.topic, group=member.group, duty=duty.name, error=error)
            duties[duty] = now + self.pace.denied_seconds
            return False
