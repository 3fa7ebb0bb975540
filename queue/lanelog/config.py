"""The options of connections and subscriptions: their names, defaults and limits, checked when they are given.

It never opens, reads or starts anything; a value that got past it needs no second check.
The client builds these objects from keyword arguments; every other room only reads their fields.
"""

from __future__ import annotations

import os
import socket
from datetime import MAXYEAR, UTC, datetime
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, cast

from attrs import field, fields, frozen
from attrs.converters import optional

from lanelog._checks import (
    MAX_SECONDS,
    NAME_MAX,
    boolean,
    check_arguments,
    check_callable,
    check_name,
    check_options,
    duration,
    integer,
    seconds,
)
from lanelog._connect import ConnectConfig
from lanelog._retry import RetryPolicy
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
    "check_retention",
]

SUBSCRIBER_NAME_MAX = 200
"""The most characters of a subscriber's name: the random incarnation that is added must fit into the column, too."""

LANE_CONCURRENCY = 10
_COUNT_MAX = 1_000_000
_BYTES_MAX = 1 << 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Order(StrEnum):
    """In which order the messages of one key are handled."""

    STRICT = "strict"
    """One at a time; a failing message holds its key back until it succeeds or is dead-lettered."""
    SERIAL = "serial"
    """One at a time; a failing message steps aside while it waits."""
    CONCURRENT = "concurrent"
    """Up to `lane_concurrency` at a time, started in order."""


class AckPolicy(Enum):
    """What becomes of a message when its handler returns or raises."""

    NACK_ON_ERROR = "nack_on_error"
    """Returning acks; raising asks the retry policy."""
    REJECT_ON_ERROR = "reject_on_error"
    """Returning acks; raising dead-letters at once."""
    ACK = "ack"
    """Acked whatever happens."""
    ACK_FIRST = "ack_first"
    """Acked, and committed, before the handler runs: at most once."""
    MANUAL = "manual"
    """Only the handler's explicit calls settle it."""


def check_handler(handler: object) -> Callable[..., object]:
    """Return `handler` if a thread can call it with a message; refuse async def, generators and what is not callable.

    What cannot take one positional argument is refused here, too: otherwise each message would become a dead letter.
    Partials, bound methods, objects with `__call__` and decorators that keep `__wrapped__` are looked through.
    """
    checked = check_callable("the handler", handler)
    check_arguments("the handler", checked, "message")
    return checked


def check_retention(retention: float, publish_timeout: float) -> None:
    """Refuse a retention in which a repeated publish could miss the copy it must be deduplicated against.

    It knows this client's `publish_timeout` alone: a publisher with a longer one looks after itself.
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
        if value.utcoffset() is None:
            raise ConfigurationError("start must be an aware datetime: add tzinfo=datetime.UTC")
        if value < _EPOCH or value.year == MAXYEAR:  # the last could leave the range in UTC
            raise ConfigurationError("start must be between the years 1970 and 9998")
        return value.astimezone(UTC)
    if value not in ("earliest", "latest"):
        hint = ": history comes into the log by `lanelog replay --target-group`" if value == "archive" else ""
        raise ConfigurationError(f"start must be 'earliest', 'latest' or an aware datetime, not {value!r}{hint}")
    return value


def _middleware(value: object) -> tuple[Callable[..., object], ...]:
    if not isinstance(value, tuple | list):
        raise ConfigurationError(f"middleware must be a tuple of callables, not {type(value).__name__}")
    for item in value:
        check_arguments("a middleware", check_callable("a middleware", item), "message", "call_next")
    return tuple(value)


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


@frozen(kw_only=True)
class SubscriptionConfig:
    """How a group's messages are handled by this process; durations in seconds, given as such or as a timedelta.

    Raises ConfigurationError for values out of their range, of another type, or that contradict each other.
    """

    name: str = field(default=None, converter=_name)
    workers: int = field(default=8, validator=integer(least=1, most=10_000))
    order: Order = field(default=Order.STRICT, converter=_order)
    lane_concurrency: int = field(default=LANE_CONCURRENCY, validator=integer(least=1, most=10_000))
    batch_size: int = field(default=100, validator=integer(least=1, most=_COUNT_MAX))
    prefetch: int = field(default=1000, validator=integer(least=1, most=_COUNT_MAX))
    prefetch_bytes: int = field(default=64 * 1024 * 1024, validator=integer(least=1, most=_BYTES_MAX))
    poll_interval: float = field(default=0.1, converter=seconds, validator=duration(above=True))
    visibility_timeout: float = field(default=60.0, converter=seconds, validator=duration(above=True))
    auto_extend: bool = field(default=True, validator=boolean)
    max_handler_time: float = field(default=3600.0, converter=seconds, validator=duration(above=True))
    lease_duration: float = field(default=15.0, converter=seconds, validator=duration(above=True))
    lease_renewal: float = field(default=5.0, converter=seconds, validator=duration(above=True))
    retry: RetryPolicy = field(factory=RetryPolicy, converter=_retry)
    max_deliveries: int | None = field(default=20, validator=integer(least=1, most=_COUNT_MAX, optional=True))
    ack_policy: AckPolicy = field(default=AckPolicy.NACK_ON_ERROR, converter=_ack_policy)
    dead_letter_suffix: str | None = field(default="_dlq", validator=_suffix)
    on_dead_letter: Callable[..., object] | None = field(default=None, validator=_hook)
    start: str | datetime = field(default="earliest", converter=_start)
    retention: float = field(default=300.0, converter=seconds, validator=duration())
    history: bool = field(default=False, validator=boolean)
    history_retention: float = field(default=604800.0, converter=seconds, validator=duration(above=True))
    dead_letter_retention: float | None = field(
        default=None, converter=optional(seconds), validator=duration(above=True, optional=True)
    )
    middleware: tuple[Callable[..., object], ...] = field(default=(), converter=_middleware)

    def dead_letter_topic(self, topic: str) -> str | None:
        """Where messages of a topic go that are given up; None: nowhere.

        To a topic of dead letters whose name has no room for a second suffix: nobody but who publishes there himself
        has messages that could be given up.
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
        if self.lane_concurrency != LANE_CONCURRENCY and self.order is not Order.CONCURRENT:
            raise ConfigurationError(f"lane_concurrency is only for order='concurrent'; order is {self.order.value!r}")

    @classmethod
    def from_options(cls, **options: object) -> SubscriptionConfig:
        """Build it from the keyword arguments of `subscribe`; an unknown one is refused with the closest known name."""
        check_options("option of subscribe()", options, (attribute.name for attribute in fields(cls)))
        return cls(**cast("dict[str, Any]", options))
