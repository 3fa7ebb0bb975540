"""What a server lost with its last commits, and what is therefore excused: that, and nothing else.

Owns the telling apart: pure, it judges nothing. After a failover the same offsets are given out again, to other
messages. So whatever was lost goes to a lane of its own here (`k7` becomes `k7~0`, lost with the first loss), where
order and duplicates are judged as anywhere, and nobody waits for it to be handled. `account` builds on the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from attrs import define, evolve, field

from chaos.history import Begin, Event, Kept, Loss, Publish, Redriven, Settled, Steer

MARK = "~"
LATE = 1.0
"""Seconds after a loss in which handlers may still begin what the server before it has handed out: a keeper's turn."""


def real(key: str) -> str:
    """The key as the library knows it."""
    return key.partition(MARK)[0]


def is_lost(key: str) -> bool:
    """Whether a lane is one of lost messages."""
    return MARK in key


@define(eq=False)
class Lives:
    """The losses of a run in their order, and what was left after each."""

    losses: list[Loss]
    _opened: list[float] = field(init=False)
    _heads: dict[tuple[float, str, str], int] = field(factory=dict, init=False)
    _settled: dict[tuple[float, str, str, str], Settled] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.losses.sort(key=lambda loss: loss.opened)
        self._opened = [loss.opened for loss in self.losses]

    @classmethod
    def told(cls, events: Iterable[Event]) -> Lives:
        """From what the nemesis wrote down."""
        events = list(events)
        lives = cls([event for event in events if isinstance(event, Loss)])
        for event in events:
            if isinstance(event, Kept):
                lives._heads[event.loss, event.topic, event.key] = event.head
            elif isinstance(event, Settled):
                lives._settled[event.loss, event.group, event.topic, event.key] = event
        return lives

    def number(self, at: float) -> int:
        """In which life of the server that was: what is written down until it opened is of the one before."""
        return bisect_right(self._opened, at)

    def head(self, loss: Loss, topic: str, key: str) -> int:
        """How far the lane went; one that is not there was purged up to the floor, or never was."""
        return self._heads.get((loss.opened, topic, key), self._heads.get((loss.opened, topic, ""), 0))

    def forgot(self, loss: Loss, group: str, topic: str, key: str, offset: int) -> bool:
        """Whether the group had not settled the message there."""
        found = self._settled.get((loss.opened, group, topic, real(key)))
        if found is None:
            return True
        return offset > found.watermark and not any(first <= offset <= last for first, last in found.above)

    def between(self, since: float, until: float) -> list[Loss]:
        """The losses that something from `since` on may have been met by, before `until`."""
        return [loss for loss in self.losses if since < loss.opened and loss.died < until]

    def lost_with(self, topic: str, key: str, offset: int, at: float) -> int | None:
        """The number of the loss with which a message went that was there at a time; None: it is still there."""
        for number, loss in enumerate(self.losses):
            if at <= loss.opened and offset > self.head(loss, topic, key):
                return number
        return None

    def apart(self, events: Sequence[Event]) -> list[Event]:
        """The events, with what was lost in lanes of its own."""
        if not self.losses:
            return list(events)
        mine: dict[tuple[str, str, int, str], int] = {}
        for event in events:
            if isinstance(event, Publish) and event.outcome == "acknowledged" and event.offset is not None:
                number = self.lost_with(event.topic, event.key, event.offset, event.at)
                if number is not None:
                    mine[event.topic, event.key, event.offset, event.id] = number
        return [self._place(event, mine) for event in events]

    def _place(self, event: Event, lost: dict[tuple[str, str, int, str], int]) -> Event:
        if isinstance(event, Steer):
            return self._still(event)
        if isinstance(event, Publish) and event.outcome != "acknowledged":
            return event
        if not isinstance(event, Publish | Redriven | Begin) or event.offset is None:
            return event
        number = self.lost_with(event.topic, event.key, event.offset, event.at)
        if number is None and isinstance(event, Begin):
            known = lost.get((event.topic, event.key, event.offset, event.id))
            if known is not None and event.at <= self.losses[known].opened + LATE:
                number = known
        return event if number is None else evolve(event, key=f"{event.key}{MARK}{number}")

    def _still(self, steer: Steer) -> Steer:
        """What an operator did in the lost tail may not have been done: nobody has to obey it afterwards."""
        for loss in self.losses:
            if loss.held < steer.end <= loss.opened:
                if steer.verb == "pause":
                    return evolve(steer, until=min(steer.until or loss.died, loss.died))
                return evolve(steer, certain=False)
        return steer

    def taken_back(self, steer: Steer) -> bool:
        """Whether a skip is gone."""
        return any(
            steer.end <= loss.opened and self.forgot(loss, steer.group, steer.topic, steer.key or "", steer.offset or 0)
            for loss in self.losses
        )


def whole(lanes: dict[tuple[str, tuple[str, str]], list]) -> dict[tuple[str, tuple[str, str]], list]:  # type: ignore[type-arg]
    """The runs of each lane as the library knows it, with those of lost messages, by time."""
    found = defaultdict(list)
    for (group, (topic, key)), runs in lanes.items():
        found[group, (topic, real(key))].extend(runs)
    return {lane: sorted(runs, key=lambda run: run.at) for lane, runs in found.items()}
