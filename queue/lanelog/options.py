"""The options of `connect` and `subscribe` as types, for editors and type checkers.

Checks nothing: at run time `ConnectConfig` and `SubscriptionConfig` have these fields, with defaults and limits. An
application that hands options on uses these types: `def consume(**options: Unpack[SubscriptionOptions])`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, overload

from lanelog._base.addresses import HostTokens
from lanelog._base.checks import Duration
from lanelog._base.payloads.codec import Codec
from lanelog._base.retry import RetryPolicy
from lanelog.batches import Batch, Messages
from lanelog.config import AckPolicy, Order
from lanelog.message import Message, Publication

Handler: TypeAlias = Callable[[Message], object]
"""A function that takes a message as its only positional argument. Its result is ignored."""

BatchHandler: TypeAlias = Callable[[Messages], object]
"""The same with `batch`. It returns None, or a list with an end for each message."""

AsyncHandler: TypeAlias = Callable[[Message], Coroutine[Any, Any, object]]
"""Not a handler, though it is called like one: nothing awaits the coroutine that it returns."""

Middleware: TypeAlias = Callable[[Message, Handler], object] | Callable[[Messages, BatchHandler], object]
"""Called with what the handler gets and with the next callable, which it must call. The last one is the handler."""

PublishMiddleware: TypeAlias = Callable[[Publication, Callable[[Publication], Any]], object]
"""Called with the publication and with the next callable, which it must call once. The last one writes."""

DeadLetterHook: TypeAlias = Callable[[Message, str], object]
"""Called with a dead-lettered message and the text of the error."""

H = TypeVar("H", bound=Handler | BatchHandler)


class AsyncHandlersAreNotSupported:
    """Its name stands in a type checker's error about an `async def` handler. At run time such a handler is refused."""


class Register(Protocol):
    """The decorator that `client.subscriber` returns. It gives the handler back unchanged."""

    @overload
    def __call__(self, handler: AsyncHandler, /) -> AsyncHandlersAreNotSupported: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, handler: H, /) -> H: ...


class ConnectOptions(TypedDict, total=False):
    """The options of `lanelog.connect`. Durations are seconds or a timedelta."""

    password: str | Callable[[], str] | HostTokens
    """The password of the URL's user, if the URL has none. A function is called for each login, in any thread: for
    tokens that end, or a password that is changed. Tokens of one host: `lanelog.contrib.aws.IamTokens`. Default:
    none."""
    pool_size: int
    """Connections shared by publishers and handlers' transactions, at least 2. Default: 8."""
    publish_timeout: Duration
    """How long a publish lasts at most, with all repetitions of what failed for a moment. Default: 30 s."""
    lane_idle_purge: Duration
    """A drained lane that is idle for this time loses its rows. Its offsets go on where they were. Default: 600 s."""
    max_payload_bytes: int
    """A payload with more bytes is refused. Default: 1,048,576."""
    connect_timeout: Duration
    """How long a new connection may take. Default: 5 s."""
    read_timeout: Duration
    """How long an answer of the server may take. Default: 30 s."""
    driver: Literal["pymysql", "mysqlclient"]
    """The database driver. `mysqlclient` comes with the extra of that name. Default: the driver that the URL names
    (`mysql+pymysql://`, `mysql+mysqldb://`), otherwise `pymysql`."""
    liveness: Literal["lock", "lease"]
    """How others find out that this process has died. `lock`: by a lock of the server (`GET_LOCK`), within some
    seconds. `lease`: when its heartbeat has run out; no session takes such a lock. Default: `lock`."""
    wake: bool
    """Notify subscribers in other processes of this host at once of what was published, and be notified; see
    docs/explanation/hints.md. Default: True."""
    wake_address: str | None
    """The IP address, with a UDP port or without, at which publishers on other hosts reach the subscriptions of this
    client: `10.0.3.7:7000`, `[fd00::7]:7000`, `10.0.3.7` (any free port). Default: None, hints of this host alone."""
    wake_networks: Sequence[str]
    """The networks to which this client may send hints, in CIDR notation: `["10.0.0.0/16", "fd00::/8"]`. Default:
    none, so only subscribers on this host are notified."""
    codec: Codec | None
    """Encodes every payload except bytes, and decodes for `message.decode()`. See `lanelog.Codec`. Default: None."""
    middleware: Sequence[PublishMiddleware]
    """Callables `(publication, call_next)` around every publish, the first one outermost; see `lanelog.Publication`. A
    tuple or a list. Default: ()."""


class SubscriptionOptions(TypedDict, total=False):
    """The options of `subscribe`, `subscriber` and `deliveries`. Durations are seconds or a timedelta."""

    name: str | None
    """The first part of the owner's name, at most 200 characters. A random part is added. Default: host and process
    id."""
    workers: int
    """Handler threads of this subscription. Default: 8."""
    order: Order | Literal["strict", "serial", "concurrent"]
    """`strict`: one message of a key at a time, and a failing one holds its key back. `serial`: one at a time, and a
    failing one lets the next ones pass while it waits. `concurrent`: several of a key at a time, started in order. All
    members of a group have the same order. Default: `strict`."""
    lane_concurrency: int
    """The most messages of a key at a time, only for `concurrent`. Default: 10."""
    batch_size: int
    """Messages read per lane and pass. Default: 100."""
    prefetch: int
    """The most messages that wait in memory. Default: 4,000."""
    prefetch_bytes: int
    """The most payload bytes that wait in memory. Default: 64 MiB."""
    poll_interval: Duration
    """The time between two polls when idle. A message that this process publishes is noticed at once, and with `wake`
    one of another process on this host. Default: 0.1 s."""
    visibility_timeout: Duration
    """A delivery that is neither settled nor extended for this time times out, and the message is delivered again.
    Default: 60 s."""
    auto_extend: bool
    """Extend a delivery while its handler's thread lives. Default: True."""
    max_handler_time: Duration
    """The longest time for which a delivery is extended automatically. Default: 3,600 s."""
    hard_time_limit: Duration | None
    """End this process, with exit status 3, when a handler has run for so long. Its attempt counts, as after a crash.
    What other handlers of the process have goes back uncounted. Less than `max_handler_time`, and without
    `auto_extend` less than `visibility_timeout`. None: never. Default: None.
    """
    unhealthy_after: Duration | None
    """Make `/livez` and `client.health().live` fail when the workers have hung for so long: all are busy, and none has
    ended for 30 s, half of `visibility_timeout`, and three times the longest run that ended. `lanelog worker` then ends
    the process as `hard_time_limit` does. None: they never do. Default: None."""
    lease_duration: Duration
    """An owner without a heartbeat for this time loses its lanes. The liveness lock usually shows it earlier. Default:
    15 s."""
    lease_renewal: Duration
    """The time between two heartbeats, less than `lease_duration`. Default: 5 s."""
    retry: RetryPolicy | int
    """When a failed message is tried again, and when it is dead-lettered. A number is the most attempts, the first
    one included. Not with ACK_FIRST. Default: 5 attempts, with waits of 1, 2, 4 and 8 s plus up to a second of
    jitter."""
    max_deliveries: int | None
    """The most attempts under any retry policy, not with ACK_FIRST. None: no limit. Default: 20."""
    ack_policy: (
        AckPolicy
        | Literal[
            "nack_on_error",
            "reject_on_error",
            "ack",
            "ack_first",
            "manual",
            "NACK_ON_ERROR",
            "REJECT_ON_ERROR",
            "ACK",
            "ACK_FIRST",
            "MANUAL",
        ]
    )
    """What a return and an exception of the handler mean. See `AckPolicy`. Default: NACK_ON_ERROR."""
    dead_letter_suffix: str | None
    """The name of the dead letter topic is the topic's name and this. None: a message without an attempt left is
    dropped, with an ERROR. Default: `_dlq`."""
    on_dead_letter: DeadLetterHook | None
    """Called with each message that is dead-lettered, and the text of the error. The message's `attempt` is the number
    of attempts made. Not with `dead_letter_suffix=None`. Default: None."""
    start: Literal["earliest", "latest"] | datetime
    """Where a new group begins. A datetime must be aware. Default: `earliest`."""
    recreate: bool
    """Register the group again although it was evicted: deleted while it had members. It begins at `start` then.
    Default: False, such a subscription does not start."""
    retention: Duration
    """How long messages stay at least, so that duplicates are found: 0, or at least twice `publish_timeout`. The
    longest retention of a topic's groups counts. Default: 300 s."""
    history: bool
    """Keep a row of how each message left the group. See `lanelog history`. Default: False."""
    history_retention: Duration
    """How long such rows stay. Only with `history`. Default: 7 days."""
    dead_letter_retention: Duration | None
    """How long the dead letters of the group stay at least. None: until they are redriven or deleted.
    Default: None."""
    middleware: Sequence[Middleware]
    """Callables `(message, call_next)` around the handler, the first one outermost. A tuple or a list. Default: ()."""
    batch: Batch | None
    """The handler gets `Messages`, several at once: at most `size`, after `wait` at the latest. Not with MANUAL or
    ACK_FIRST. None: it gets one message. Default: None."""
