"""The workload of a subscription's worker threads, for heartbeats and health.

Owns the view of the threads. Takes a stack only of a handler that has run for `LONG_SECONDS`. Never sends SQL.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._engine.working import stacks
from lanelog._process.workload import OpenAck, RunningHandler, Workload, patience

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from threading import Thread
    from types import CodeType

    from lanelog._engine.lane.run import Attempt
    from lanelog._engine.member.member import Member

LONG_SECONDS: Final = 10.0
"""Seconds after which a handler is described with its stack."""
DESCRIBED_HANDLERS: Final = 8
"""Those that are described: those that have run longest."""
OPEN_SECONDS: Final = 5.0
"""Seconds after which an ack in an open transaction is described."""


@frozen
class Busy:
    """A worker in a handler."""

    thread: Thread
    member: Member
    attempt: Attempt
    beside: tuple[Attempt, ...] = ()
    """The others of its batch."""


def measure(
    busy: Sequence[Busy],
    waits: Sequence[float],
    *,
    workers: int,
    longest: float,
    visibility_timeout: float,
    pool_waits: int,
    outermost: CodeType | None,
    acked: Iterable[tuple[Member, Attempt]],
    now: float,
) -> Workload:
    """Return what the workers do.

    `busy`: those in a handler. `waits`: since when others have waited in the isolation. `outermost`: the engine's frame
    that calls the handler; None: there are no handlers. `acked`: attempts whose handlers have returned or that were
    pulled, and whose acks stand in open transactions.
    """
    long = [each for each in busy if now - each.attempt.started >= LONG_SECONDS]
    long.sort(key=lambda each: each.attempt.started)
    return Workload(
        host=socket.gethostname(),
        pid=os.getpid(),
        workers=workers,
        busy=len(busy) + len(waits),
        quiet=round(min((now - since for since in (*(each.attempt.started for each in busy), *waits)), default=0.0), 1),
        longest=round(longest, 1),
        patience=round(patience(visibility_timeout, longest), 1),
        pool_waits=pool_waits,
        acks=_open(acked, now),
        handlers=_described(long[:DESCRIBED_HANDLERS], outermost, now) if outermost is not None and long else (),
    )


def _open(acked: Iterable[tuple[Member, Attempt]], now: float) -> tuple[OpenAck, ...]:
    found = [(ack, *each) for each in acked if (ack := each[1].ack) and now - ack.at >= OPEN_SECONDS]
    found.sort(key=lambda each: each[0].at)
    return tuple(
        OpenAck(
            topic=member.topic,
            key=attempt.term.key,
            offset=attempt.offset,
            seconds=round(now - ack.at, 1),
            connection=ack.session,
        )
        for ack, member, attempt in found[:DESCRIBED_HANDLERS]
    )


def _described(long: Sequence[Busy], outermost: CodeType, now: float) -> tuple[RunningHandler, ...]:
    frames = stacks.frames_of([each.thread.ident for each in long if each.thread.ident is not None])
    return tuple(
        RunningHandler(
            topic=each.member.topic,
            key=each.attempt.term.key,
            offset=each.attempt.offset,
            seconds=round(now - each.attempt.started, 1),
            stack=stacks.text_of(frame, outermost),
        )
        for each in long
        if (frame := frames.get(each.thread.ident or 0)) is not None
    )
