"""What becomes of an attempt: the ack policy and the retry policy, applied to how a handler ended.

Owns that decision alone; never touches a lane or the database. Called by the workers, by explicit settlements and by
the keeper for time-outs, always outside the engine's locks because the policy's objects are the user's.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import frozen

from lanelog import _telemetry
from lanelog.config import AckPolicy
from lanelog.errors import ConfigurationError
from lanelog.message import Postpone, Reject, Retry

if TYPE_CHECKING:
    from lanelog._engine.run import Attempt
    from lanelog.config import SubscriptionConfig

MAX_ERROR = 4000
"""Characters of an error that are kept in the database."""

DEAD_LETTER_WAIT = 60.0
"""The longest wait of a dead letter whose own consumer keeps failing, when the policy names no wait any more."""

FALLBACK_WAIT = 1.0
"""The wait when the user's own policy object fails."""

log = _telemetry.get_logger()


class Verb(Enum):
    """What an outcome does to a message."""

    ACK = "ack"
    RETRY = "retry"
    POSTPONE = "postpone"
    BURY = "bury"


@frozen
class Outcome:
    """A decided attempt; `wait` in seconds."""

    verb: Verb
    wait: float = 0.0
    error: str | None = None
    last: bool = False  # of a message that crashed before: the attempt after this wait is the last


ACKED = Outcome(Verb.ACK)


def describe(error: BaseException) -> str:
    """An exception as one bounded text, as it is kept with the message."""
    return clip(_telemetry.describe(error))


def clip(text: str) -> str:
    """Bounded, and always encodable."""
    return text[:MAX_ERROR].encode("utf-8", "backslashreplace").decode()


def judge(config: SubscriptionConfig, attempt: Attempt, error: BaseException | None, now: float) -> Outcome | None:
    """How an attempt ends whose handler returned (None) or raised; None: only an explicit call may settle it."""
    policy = config.ack_policy
    if policy is AckPolicy.MANUAL:
        return None
    if error is None or policy in (AckPolicy.ACK, AckPolicy.ACK_FIRST):
        return ACKED
    if isinstance(error, Postpone):
        return Outcome(Verb.POSTPONE, error.delay)
    if isinstance(error, Reject):
        return rejected(attempt, error.reason)
    if isinstance(error, Retry):
        return failed(config, attempt, None, describe(error), now, delay=error.delay)
    if policy is AckPolicy.REJECT_ON_ERROR:
        return rejected(attempt, describe(error))
    return failed(config, attempt, error, describe(error), now)


def rejected(attempt: Attempt, reason: str) -> Outcome:
    """Straight to the dead letters; a dead letter itself has nowhere to go and is tried again."""
    if attempt.row.original_topic:
        return Outcome(Verb.RETRY, _endless_wait(attempt), clip(reason))
    return Outcome(Verb.BURY, 0.0, clip(reason))


def failed(
    config: SubscriptionConfig,
    attempt: Attempt,
    error: BaseException | None,
    reason: str,
    now: float,
    *,
    delay: float | None = None,
) -> Outcome:
    """Ask the retry policy; an explicit delay replaces only its wait."""
    since_first = 0.0 if attempt.first_started is None else now - attempt.first_started
    try:
        wait = config.retry.decide(attempt=attempt.number, since_first=since_first, error=error)
    except ConfigurationError as fault:
        log.error("retry_policy.failed", error=fault, attempt=attempt.number)
        wait = FALLBACK_WAIT
    capped = config.max_deliveries is not None and attempt.number >= config.max_deliveries
    if attempt.row.original_topic:
        wait = _endless_wait(attempt) if wait is None else wait
    elif wait is None or capped:
        return Outcome(Verb.BURY, 0.0, clip(reason))
    wait = wait if delay is None else delay
    last = attempt.crashed and exhausted(config, attempt.number + 1, since_first + wait)
    return Outcome(Verb.RETRY, wait, clip(reason), last)


def _endless_wait(attempt: Attempt) -> float:
    return float(min(DEAD_LETTER_WAIT, 2.0 ** min(attempt.number, 10)))


def exhausted(config: SubscriptionConfig, attempts: int, since_first: float) -> bool:
    """Whether no attempt may follow after this many."""
    if config.max_deliveries is not None and attempts >= config.max_deliveries:
        return True
    return not config.retry.would_retry(attempts, since_first)
