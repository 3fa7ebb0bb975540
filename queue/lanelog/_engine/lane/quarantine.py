"""Quarantine: a message that may have crashed its process runs its last attempt alone.

Only a crash during such a run is blamed on the message. When a process crashes, any message that it was running may be
the cause. So a crash counts an attempt for each of them, and blames none:

1. A message that crashed is delivered again beside others, as long as more than one attempt is left.
2. Its last attempt runs alone in its process: `member/isolation.py` holds all others back. The delivery row says
   `alone` from the mark on.
3. If that process dies, too, the row proves that no other message ran: this one crashed the process. It goes to the
   dead letters. Without that proof it runs alone once more, even when no attempt is left.

A message that is a dead letter itself is retried without limit, so it is never quarantined. A message that is acked
before its handler has no attempt after that one. A policy of one attempt leaves no attempt to run alone: there, every
message that a crash met becomes a dead letter.

Owns this decision. Never asks the user's retry policy under a lock: a load and `policy.failed` ask it before. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lanelog._engine.lane.values import Rules, Waiting


class AttemptsLeft(NamedTuple):
    """What the subscription's rules leave to a message that crashed."""

    none: bool
    next_is_last: bool


class Verdict(NamedTuple):
    """What happens to a message that is due again."""

    caused_crash: bool  # it died alone, and no attempt is left
    next_is_last: bool
    alone: bool


NO_CRASH = AttemptsLeft(none=False, next_is_last=False)
"""For a message that never crashed: its attempts are counted when they fail."""


def attempts_left(rules: Rules, attempts: int, since_first: float) -> AttemptsLeft:
    """What is left after `attempts`, when a lane is loaded. Asks the user's retry policy, so never call it locked."""
    return AttemptsLeft(
        none=attempts > 0 and rules.exhausted(attempts, since_first),
        next_is_last=rules.exhausted(attempts + 1, since_first),
    )


def judge_again(wait: Waiting, own_cap: int | None, *, endless: bool, ack_first: bool) -> Verdict:
    """The verdict on a message that is due again.

    `own_cap`: how often its redrive lets it be delivered. Only the message itself says so, and a load does not read it.
    `endless`: it is a dead letter, which is retried without limit.
    """
    no_attempts_left = wait.no_attempts_left or (own_cap is not None and wait.attempts >= own_cap)
    next_is_last = wait.next_is_last or (own_cap is not None and wait.attempts + 1 >= own_cap)
    return Verdict(
        caused_crash=wait.died_alone and no_attempts_left and not endless,
        next_is_last=next_is_last,
        alone=wait.crashed and next_is_last and not endless and not ack_first,
    )
