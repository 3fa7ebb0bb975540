"""The decision about an attempt: the ack policy and the retry policy, applied to the end of a handler.

Owns that decision. Never touches a lane or the database. The caller holds none of the engine's locks, because the
retry policy may be the user's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lanelog._base.backoff import Backoff
from lanelog._base.payloads.metadata import decode_metadata
from lanelog._base.text import describe
from lanelog._engine.handler_error import clip, raised, render
from lanelog._engine.lane.values import ACKED, Outcome, Verb
from lanelog._facts.engine import worker as facts
from lanelog._facts.fact import AttemptFields
from lanelog._stores._redriven import CAP
from lanelog._stores.consumers.history import Ended
from lanelog.config import AckPolicy
from lanelog.errors import ConfigurationError
from lanelog.message import Postpone, Reject, Retry

if TYPE_CHECKING:
    from lanelog._engine.lane.run import Attempt
    from lanelog._facts.log import ExcInfo
    from lanelog._stores.log.fetches import Fetched
    from lanelog.config import SubscriptionConfig

OF_DEAD_LETTERS: Final = Backoff(first=2.0, most=60.0)
"""For a dead letter that is rejected, or fails when no attempt is left."""

FALLBACK_SECONDS: Final = 1.0
"""The wait when the user's own policy object fails."""


def judge(config: SubscriptionConfig, attempt: Attempt, error: BaseException | None, now: float) -> Outcome | None:
    """The outcome of an attempt whose handler raised `error`, or returned (`error` None).

    None under AckPolicy.MANUAL: only an explicit call may settle it.
    """
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
        return failed(config, attempt, None, render(error), now, delay=error.delay, raised=raised(error))
    if policy is AckPolicy.REJECT_ON_ERROR:
        # Ended.FAILED, because the handler has not raised Reject.
        return rejected(attempt, render(error), ended=Ended.FAILED, raised=raised(error))
    return failed(config, attempt, error, render(error), now, raised=raised(error))


def rejected(attempt: Attempt, reason: str, *, ended: Ended = Ended.REJECTED, raised: ExcInfo | None = None) -> Outcome:
    """The outcome of a rejection: to the dead letters at once. A dead letter is tried again instead."""
    if attempt.row.original_topic:
        return Outcome(Verb.RETRY, OF_DEAD_LETTERS.longest(attempt.number), clip(reason))
    return Outcome(Verb.BURY, 0.0, clip(reason), ended=ended, raised=raised)


def timed_out(config: SubscriptionConfig, attempt: Attempt, reason: str, now: float) -> Outcome:
    """The outcome of a visibility time-out: a failure with a TimeoutError."""
    return failed(config, attempt, TimeoutError(reason), reason, now, ended=Ended.LOCK_EXPIRED)


def faulted(config: SubscriptionConfig, attempt: Attempt, fault: BaseException, now: float) -> Outcome:
    """The outcome of an attempt whose worker met a fault beside the handler: it counts, as a crash would."""
    try:
        return failed(config, attempt, fault, describe(fault), now)
    except Exception:  # noqa: BLE001 - the fault may lie here
        return Outcome(Verb.RETRY, FALLBACK_SECONDS, clip(describe(fault)))


def failed(
    config: SubscriptionConfig,
    attempt: Attempt,
    error: BaseException | None,
    reason: str,
    now: float,
    *,
    delay: float | None = None,
    ended: Ended = Ended.FAILED,
    raised: ExcInfo | None = None,
) -> Outcome:
    """The outcome of a failure: ask the retry policy. An explicit delay replaces only its wait."""
    since_first = 0.0 if attempt.first_started is None else now - attempt.first_started
    try:
        wait = config.retry.decide(attempt=attempt.number, since_first=since_first, error=error)
    except ConfigurationError as fault:
        facts.retry_policy_failed(error=fault, attempt=attempt.number)
        wait = FALLBACK_SECONDS
    own = own_cap(attempt.row)
    capped = _reached(config.max_deliveries, attempt.number) or _reached(own, attempt.number)
    if attempt.row.original_topic:
        wait = OF_DEAD_LETTERS.longest(attempt.number) if wait is None else wait
    elif wait is None or capped:
        return Outcome(Verb.BURY, 0.0, clip(reason), ended=ended, raised=raised)
    wait = wait if delay is None else delay
    following = attempt.number + 1
    # For `quarantine`, asked here because no lock is held here.
    last = attempt.crashed and (_reached(own, following) or exhausted(config, following, since_first + wait))
    return Outcome(Verb.RETRY, wait, clip(reason), next_is_last=last)


def report(context: AttemptFields, error: BaseException, outcome: Outcome | None) -> None:
    """Log that a handler raised. A postponed message has not failed, so it is not logged."""
    if isinstance(error, Postpone) and outcome is not None and outcome.verb is Verb.POSTPONE:
        return
    verb = "none" if outcome is None else outcome.verb.value
    facts.handler_failed(**context, error=describe(error), outcome=verb, exc_info=raised(error))


def exhausted(config: SubscriptionConfig, attempts: int, since_first: float) -> bool:
    """Whether no attempt may follow after this many."""
    return _reached(config.max_deliveries, attempts) or not config.retry.would_retry(attempts, since_first)


def own_cap(row: Fetched) -> int | None:
    """How often a redriven message may be delivered, as its redrive said. None: as often as any other message."""
    if not row.target_group:
        return None
    cap = decode_metadata(row.metadata).get(CAP, "")
    return int(cap) if cap.isdecimal() else None


def _reached(cap: int | None, attempts: int) -> bool:
    return cap is not None and attempts >= cap
