"""How an attempt ends: ack policies, retry policies, and what handlers raise."""

from __future__ import annotations

from typing import Any

import pytest
from tenacity import retry_if_exception_type, stop_after_attempt, stop_after_delay, stop_never, wait_fixed

from lanelog._engine.lane import policy
from lanelog._engine.lane.policy import FALLBACK_SECONDS
from lanelog._engine.lane.run import Attempt
from lanelog._engine.lane.values import ACKED, Outcome, Verb
from lanelog._stores.consumers.history import Ended
from lanelog.config import AckPolicy, RetryPolicy, SubscriptionConfig
from lanelog.message import Postpone, Reject, Retry
from support.lanes import row
from support.refusing import Mute

WAIT = 7.0
BOOM = ValueError("boom")


def config(**options: Any) -> SubscriptionConfig:
    retry = RetryPolicy(stop=options.pop("stop", stop_after_attempt(3)), wait=options.pop("wait", wait_fixed(WAIT)))
    asked = options.get("ack_policy") in (None, AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL)
    return SubscriptionConfig(**{**({"retry": retry} if asked else {}), **options})


def attempt(number: int = 1, *, first_started: float | None = 100.0, original: str = "") -> Attempt:
    return Attempt(None, row(1, original=original), number, first_started)  # type: ignore[arg-type]


def judged(raised: BaseException, number: int = 1, *, original: str = "", **options: Any) -> Outcome:
    """How an attempt ends that raised this."""
    outcome = policy.judge(config(**options), attempt(number, original=original), raised, 101.0)
    assert outcome is not None
    return outcome


def retried(wait: float, error: str) -> Outcome:
    return Outcome(Verb.RETRY, wait, error)


def buried(error: str, ended: Ended = Ended.FAILED) -> Outcome:
    return Outcome(Verb.BURY, 0.0, error, ended=ended)


def rejected(error: str) -> Outcome:
    return buried(error, Ended.REJECTED)


ASKED = "Retry: the handler asked for another attempt"
NACK, REJECT = AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR
POSTPONED = Outcome(Verb.POSTPONE, 60.0)


@pytest.mark.parametrize(
    ("ack_policy", "raised", "expected"),
    [
        (NACK, None, ACKED),
        (NACK, BOOM, retried(WAIT, "ValueError: boom")),
        (NACK, Reject("bad"), rejected("bad")),
        (NACK, Retry(2.5), retried(2.5, f"{ASKED} in 2.5 s")),
        (NACK, Retry(0), retried(0.0, f"{ASKED} in 0 s")),
        (NACK, Retry(), retried(WAIT, ASKED)),
        (NACK, Postpone(60), POSTPONED),
        (NACK, KeyboardInterrupt(), retried(WAIT, "KeyboardInterrupt")),
        (NACK, SystemExit(3), retried(WAIT, "SystemExit: 3")),
        (REJECT, None, ACKED),
        (REJECT, BOOM, buried("ValueError: boom")),
        (REJECT, Reject("bad"), rejected("bad")),
        (REJECT, Retry(2.5), retried(2.5, f"{ASKED} in 2.5 s")),
        (REJECT, Postpone(60), POSTPONED),
        *[(acking, raised, ACKED) for acking in (AckPolicy.ACK, AckPolicy.ACK_FIRST)
          for raised in (None, BOOM, Reject("bad"), Retry(2.5), Postpone(60), SystemExit(3))],
        *[(AckPolicy.MANUAL, raised, None) for raised in (None, BOOM, Reject("bad"), Retry(2.5), Postpone(60))],
    ],
)  # fmt: skip
def test_the_ack_policy_decides_how_a_handler_ended(
    ack_policy: AckPolicy, raised: BaseException | None, expected: Outcome | None
) -> None:
    """Returning, raising and asking for something end as the ack policy says."""
    assert policy.judge(config(ack_policy=ack_policy), attempt(), raised, 101.0) == expected


@pytest.mark.parametrize("raised", [BOOM, Retry(), Retry(2.5)])
def test_the_last_attempt_is_buried(raised: Exception) -> None:
    """When the retry policy allows no attempt any more, failing and asking for another one are the same."""
    assert judged(raised, 3).verb is Verb.BURY


@pytest.mark.parametrize("raised", [BOOM, Retry(0)])
@pytest.mark.parametrize(
    ("number", "most", "verb"),
    [(3, 4, Verb.RETRY), (4, 4, Verb.BURY), (5, 4, Verb.BURY), (10_000, None, Verb.RETRY)],
)
def test_max_deliveries_caps_any_policy(number: int, most: int | None, verb: Verb, raised: Exception) -> None:
    """A policy without an end has one unless that is None, and an explicit delay does not go past it."""
    assert judged(raised, number, stop=stop_never, max_deliveries=most).verb is verb


def test_the_time_since_the_first_attempt_is_the_policys() -> None:
    """A policy that stops after a delay counts from the first attempt, whoever made it."""
    limited = config(stop=stop_after_delay(60))
    assert policy.failed(limited, attempt(2), None, "no", 159.0).verb is Verb.RETRY
    assert policy.failed(limited, attempt(2), None, "no", 160.0).verb is Verb.BURY
    assert policy.failed(limited, attempt(1, first_started=None), None, "no", 9e9).verb is Verb.RETRY


@pytest.mark.parametrize("delay", [0.0, 3.0, 86_400.0])
def test_an_explicit_delay_replaces_only_the_wait(delay: float) -> None:
    """A nack with a delay waits that long; whether there is another attempt remains the policy's decision."""
    assert policy.failed(config(), attempt(2), None, "no", 101.0, delay=delay) == retried(delay, "no")
    assert policy.failed(config(), attempt(3), None, "no", 101.0, delay=delay) == buried("no")


def test_an_exception_the_policy_does_not_retry_is_buried_at_once() -> None:
    """Tenacity's retry object is asked about the handler's exception, and about a time-out, but not about a nack."""
    picky = SubscriptionConfig(retry=RetryPolicy(retry=retry_if_exception_type(OSError), wait=wait_fixed(WAIT)))
    assert policy.judge(picky, attempt(), BOOM, 101.0) == buried("ValueError: boom")
    assert policy.judge(picky, attempt(), OSError("disk"), 101.0) == retried(WAIT, "OSError: disk")
    assert policy.failed(picky, attempt(), TimeoutError("slow"), "slow", 101.0).verb is Verb.RETRY  # an OSError
    assert policy.failed(picky, attempt(), None, "nacked", 101.0) == retried(WAIT, "nacked")


def broken(_: object) -> float:
    raise ZeroDivisionError("my policy has a bug")


def silly(_: object) -> str:
    return "soon"


@pytest.mark.parametrize("options", [{"wait": broken}, {"wait": silly}, {"stop": broken}])
def test_a_broken_policy_falls_back(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A policy object that fails costs one error event and a fixed wait, neither the message nor the thread."""
    assert judged(BOOM, **options) == retried(FALLBACK_SECONDS, "ValueError: boom")
    assert [record.message.split()[0] for record in caplog.records] == ["retry_policy.failed"]
    assert judged(BOOM, 2, max_deliveries=2, **options) == buried("ValueError: boom")  # the cap holds all the same


@pytest.mark.parametrize("ack_policy", [NACK, REJECT])
@pytest.mark.parametrize("raised", [BOOM, Reject("bad"), Retry(), TimeoutError()])
@pytest.mark.parametrize("number", [1, 3, 20, 100_000])
def test_a_dead_letter_is_never_buried(number: int, raised: Exception, ack_policy: AckPolicy) -> None:
    """A dead letter itself is retried without limit, with a bounded wait unless its handler names one."""
    outcome = judged(raised, number, original="merge", ack_policy=ack_policy, max_deliveries=1)
    assert outcome.verb is Verb.RETRY
    assert 0 < outcome.wait <= policy.OF_DEAD_LETTERS.most
    assert judged(Retry(900), number, original="merge") == retried(900.0, f"{ASKED} in 900 s")


@pytest.mark.parametrize("ack_policy", AckPolicy)
def test_an_exception_without_words_is_an_exception_like_any_other(ack_policy: AckPolicy) -> None:
    """An exception whose `__str__` raises is described by its type, and decided like any other."""
    outcome = policy.judge(config(ack_policy=ack_policy), attempt(), Mute(), 101.0)
    if ack_policy in (NACK, REJECT):
        assert outcome is not None
        assert outcome.error == "Mute: (its text could not be rendered)"


@pytest.mark.parametrize("error", [ValueError(), ValueError("")])
def test_an_exception_without_text_is_its_class(error: Exception) -> None:
    """The stored text is never empty."""
    assert judged(error).error == "ValueError"


def test_a_dead_letter_takes_its_exception_along() -> None:
    """The event shows the traceback; a retry keeps nothing of the handler's frames, and a rejection has none."""
    for options in ({"max_deliveries": 1}, {"ack_policy": REJECT}):
        assert (judged(BOOM, **options).raised or ())[1] is BOOM
    assert [judged(error).raised for error in (BOOM, Reject("bad"))] == [None, None]


def test_a_postponed_message_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Only a failure is reported as one, with its traceback where there is something to show."""
    for error in (BOOM, Reject("bad"), Postpone(60)):
        policy.report({"topic": "t"}, error, judged(error))
    assert [(record.__dict__["outcome"], record.exc_info is None) for record in caplog.records] == [
        ("retry", False),
        ("bury", True),
    ]


@pytest.mark.parametrize(
    ("options", "attempts", "expected"),
    [
        ({}, 2, False),
        ({}, 3, True),
        ({"stop": stop_never}, 19, False),
        ({"stop": stop_never}, 20, True),
        ({"stop": stop_never, "max_deliveries": None}, 10_000, False),
        ({"stop": stop_after_attempt(1)}, 1, True),
        ({"stop": broken}, 1, False),
        ({"wait": broken}, 3, True),
    ],
)
def test_exhausted_asks_the_policy_and_the_cap(options: dict[str, Any], attempts: int, expected: bool) -> None:
    """No attempt may follow when the policy stops, or when `max_deliveries` is reached, whichever comes first."""
    assert policy.exhausted(config(**options), attempts, 1.0) is expected
