"""The options of a subscription: names, defaults, limits, and their checks.

Never opens, reads or starts anything. A value that has passed needs no second check.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final

from attrs import field, fields, frozen
from attrs.converters import optional

from lanelog._base.checks import (
    MAX_SECONDS,
    NAME_MAX,
    aware,
    boolean,
    check_arguments,
    check_callable,
    check_middleware,
    check_name,
    check_options,
    duration,
    integer,
    seconds,
)
from lanelog._base.connection_options import ConnectConfig
from lanelog._base.retry import RetryPolicy
from lanelog.batches import Batch
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute

__all__ = [
    "MAX_SECONDS",
    "NAME_MAX",
    "AckPolicy",
    "ConnectConfig",
    "Order",
    "RetryPolicy",
    "SubscriptionConfig",
    "check_handler",
    "check_name",
    "check_pulled",
    "check_retention",
]

SUBSCRIBER_NAME_MAX = 200
"""The most characters of a subscriber's name. The random part that is added must fit into the column, too."""

_COUNT_MAX = 1_000_000
_BYTES_MAX = 1 << 40
_RETRY = RetryPolicy()


class Order(StrEnum):
    """In which order the messages of one key are handled."""

    STRICT = "strict"
    """One message of a key at a time. A failing message holds its key back until it succeeds or is dead-lettered."""
    SERIAL = "serial"
    """One message of a key at a time. A failing message lets the next ones pass while it waits."""
    CONCURRENT = "concurrent"
    """Up to `lane_concurrency` messages of a key at a time, started in order."""


class AckPolicy(Enum):
    """What becomes of a message when its handler returns or raises."""

    NACK_ON_ERROR = "nack_on_error"
    """A return acks. An exception asks the retry policy."""
    REJECT_ON_ERROR = "reject_on_error"
    """A return acks. An exception dead-letters the message at once."""
    ACK = "ack"
    """A return acks, and an exception, too."""
    ACK_FIRST = "ack_first"
    """The ack is committed before the handler runs: at most once."""
    MANUAL = "manual"
    """Only explicit calls on the message settle it."""


def check_handler(handler: object) -> Callable[..., object]:
    """Return `handler` if a thread can call it with a message. Otherwise raise ConfigurationError.

    A handler that cannot take one positional argument is refused here: later each message would become a dead letter.
    An async function or a generator is also found inside of partials, bound methods, `__call__` and `__wrapped__`.
    """
    checked = check_callable("the handler", handler)
    check_arguments("the handler", checked, "message")
    return checked


def check_retention(retention: float, publish_timeout: float) -> None:
    """Refuse a retention so short that a repeated publish could miss the first copy.

    The check knows only this client's `publish_timeout`. A publisher with a longer one checks its own repetitions.
    """
    least = 2 * publish_timeout
    if 0 < retention < least:
        raise ConfigurationError(
            f"retention must be 0 or at least twice publish_timeout ({least:g} s), not {retention:g}"
        )


def _order(value: str | Order) -> Order:
    for order in Order:
        if value == order.value:
            return order
    raise ConfigurationError(f"order must be one of {', '.join(Order)}, not {value!r}")


def _ack_policy(value: str | AckPolicy) -> AckPolicy:
    for policy in AckPolicy:
        if value is policy or (isinstance(value, str) and value.lower() == policy.value):
            return policy
    raise ConfigurationError(
        f"ack_policy must be one of {', '.join(f'AckPolicy.{policy.name}' for policy in AckPolicy)}, not {value!r}"
    )


def _start(value: str | datetime) -> str | datetime:
    if isinstance(value, datetime):
        return aware("start", value)
    if value not in ("earliest", "latest"):
        hint = ": history comes into the log by `lanelog replay --target-group`" if value == "archive" else ""
        raise ConfigurationError(f"start must be 'earliest', 'latest' or an aware datetime, not {value!r}{hint}")
    return value


def _middleware(value: object) -> tuple[Callable[..., object], ...]:
    return check_middleware(value, "message")


def _name(value: str | None) -> str:
    if value is None:
        return f"{socket.gethostname()[: SUBSCRIBER_NAME_MAX - 20].strip() or 'host'}-{os.getpid()}"
    if len(check_name("name", value)) > SUBSCRIBER_NAME_MAX:
        raise ConfigurationError(
            f"name must have at most {SUBSCRIBER_NAME_MAX} characters: a random part is added to it"
        )
    return check_name("name", value)


def _retry(value: RetryPolicy | int) -> RetryPolicy:
    if isinstance(value, int) and not isinstance(value, bool):
        return RetryPolicy(max_attempts=value)
    if not isinstance(value, RetryPolicy):
        raise ConfigurationError(
            f"retry must be a number of attempts or a lanelog.RetryPolicy, not {type(value).__name__}: "
            "write retry=5 or RetryPolicy(stop=…, wait=…)"
        )
    return value


def _suffix(_: Any, __: Attribute[Any], value: object) -> None:
    if value is not None:
        check_name("dead_letter_suffix", value)


def _hook(_: Any, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        check_arguments(attribute.name, check_callable(attribute.name, value), "message", "error")


def _batch(_: Any, __: Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, Batch):
        raise ConfigurationError(f"batch must be a lanelog.Batch, not {type(value).__name__}: write Batch(size=100)")


@frozen(kw_only=True)
class SubscriptionConfig:
    """The options of one subscription; `SubscriptionOptions` says what each means. Durations are seconds here.

    Raises:
        ConfigurationError: A value is out of range or of another type, or two values contradict each other.
    """

    name: str = field(default=None, converter=_name)
    workers: int = field(default=8, validator=integer(least=1, most=10_000))
    order: Order = field(default=Order.STRICT, converter=_order)
    lane_concurrency: int = field(default=10, validator=integer(least=1, most=10_000))
    batch_size: int = field(default=100, validator=integer(least=1, most=_COUNT_MAX))
    prefetch: int = field(default=4000, validator=integer(least=1, most=_COUNT_MAX))
    prefetch_bytes: int = field(default=64 * 1024 * 1024, validator=integer(least=1, most=_BYTES_MAX))
    poll_interval: float = field(default=0.1, converter=seconds, validator=duration(above=True))
    visibility_timeout: float = field(default=60.0, converter=seconds, validator=duration(above=True))
    auto_extend: bool = field(default=True, validator=boolean)
    max_handler_time: float = field(default=3600.0, converter=seconds, validator=duration(above=True))
    hard_time_limit: float | None = field(
        default=None, converter=optional(seconds), validator=duration(above=True, optional=True)
    )
    unhealthy_after: float | None = field(default=None, converter=optional(seconds), validator=duration(optional=True))
    lease_duration: float = field(default=15.0, converter=seconds, validator=duration(above=True))
    lease_renewal: float = field(default=5.0, converter=seconds, validator=duration(above=True))
    retry: RetryPolicy = field(default=_RETRY, converter=_retry)
    max_deliveries: int | None = field(default=20, validator=integer(least=1, most=_COUNT_MAX, optional=True))
    ack_policy: AckPolicy = field(default=AckPolicy.NACK_ON_ERROR, converter=_ack_policy)
    dead_letter_suffix: str | None = field(default="_dlq", validator=_suffix)
    on_dead_letter: Callable[..., object] | None = field(default=None, validator=_hook)
    start: str | datetime = field(default="earliest", converter=_start)
    recreate: bool = field(default=False, validator=boolean)
    retention: float = field(default=300.0, converter=seconds, validator=duration())
    history: bool = field(default=False, validator=boolean)
    history_retention: float = field(default=604800.0, converter=seconds, validator=duration(above=True))
    dead_letter_retention: float | None = field(
        default=None, converter=optional(seconds), validator=duration(above=True, optional=True)
    )
    middleware: tuple[Callable[..., object], ...] = field(default=(), converter=_middleware)
    batch: Batch | None = field(default=None, validator=_batch)

    def dead_letter_topic(self, topic: str) -> str | None:
        """Return the dead letter topic of a topic. None: there is none.

        A dead letter topic is its own dead letter topic if its name has no room for a second suffix.
        """
        if self.dead_letter_suffix is None:
            return None
        name = topic + self.dead_letter_suffix
        return topic if len(name) > NAME_MAX and topic.endswith(self.dead_letter_suffix) else name

    def __attrs_post_init__(self) -> None:
        if self.lease_renewal >= self.lease_duration:
            raise ConfigurationError(
                f"lease_renewal ({self.lease_renewal:g}) must be less than lease_duration ({self.lease_duration:g})"
            )
        abandoned = "max_handler_time" if self.auto_extend else "visibility_timeout"
        longest = self.max_handler_time if self.auto_extend else self.visibility_timeout
        if self.hard_time_limit is not None and self.hard_time_limit >= longest:
            without = "" if self.auto_extend else " without auto_extend"
            raise ConfigurationError(
                f"hard_time_limit ({self.hard_time_limit:g}) must be less than {abandoned} ({longest:g}), "
                f"at which a handler is abandoned{without}"
            )
        if self.batch is not None:
            self._check_batch(self.batch)
        for option, idle, why in _IDLE:
            if idle(self) and _changed(self, option):
                raise ConfigurationError(why.format(self, option=option))

    def _check_batch(self, batch: Batch) -> None:
        if self.ack_policy in (AckPolicy.MANUAL, AckPolicy.ACK_FIRST):
            raise ConfigurationError(
                f"batch is not for ack_policy {self.ack_policy.name}: the return of the handler acks a batch"
            )
        if self.max_deliveries == 1 or not self.retry.would_retry(1, 0.0):
            raise ConfigurationError(
                "batch needs a second attempt: with a single one, a crash would dead-letter a whole batch; allow two "
                "with retry and max_deliveries, or leave batch out"
            )
        if batch.size > self.prefetch:
            raise ConfigurationError(
                f"batch.size ({batch.size}) must be at most prefetch ({self.prefetch}): no more messages are in memory"
            )

    @classmethod
    def from_options(cls, **options: Any) -> SubscriptionConfig:
        """Build it from the keyword arguments of `subscribe`. The error for an unknown one names the closest known."""
        check_options("option of subscribe()", options, (attribute.name for attribute in fields(cls)))
        return cls(**options)


_ONCE: Final = "{option} is about a second attempt, and ACK_FIRST makes none: leave it out, or set another ack_policy"

_IDLE: Final[tuple[tuple[str, Callable[[SubscriptionConfig], bool], str], ...]] = (
    (
        "lane_concurrency",
        lambda config: config.order is not Order.CONCURRENT,
        "{option} is only for order='concurrent'; order is {0.order.value!r}",
    ),
    ("retry", lambda config: config.ack_policy is AckPolicy.ACK_FIRST, _ONCE),
    ("max_deliveries", lambda config: config.ack_policy is AckPolicy.ACK_FIRST, _ONCE),
    (
        "history_retention",
        lambda config: not config.history,
        "{option} is only for history=True: add it, or leave {option} out",
    ),
    (
        "on_dead_letter",
        lambda config: config.dead_letter_suffix is None,
        "{option} has no effect with dead_letter_suffix=None, which keeps no dead letters: leave one of them out",
    ),
)
"""Options that another one leaves without effect: when that is so, and what the user can do."""

_OF_HANDLERS: Final = ("auto_extend", "hard_time_limit", "unhealthy_after", "middleware", "batch")


def check_pulled(config: SubscriptionConfig) -> None:
    """Refuse options that are about a handler: who pulls messages has none."""
    for option in _OF_HANDLERS:
        if _changed(config, option):
            raise ConfigurationError(f"{option} is about handlers, and deliveries() has none: leave it out")
    if config.ack_policy in (AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK):
        raise ConfigurationError(
            f"ack_policy {config.ack_policy.name} is about exceptions of a handler, and deliveries() has none: call "
            "ack(), nack() or reject() on each message"
        )


def _changed(config: SubscriptionConfig, option: str) -> bool:
    """Whether an option has another value than its default."""
    return bool(getattr(config, option) != getattr(fields(SubscriptionConfig), option).default)
