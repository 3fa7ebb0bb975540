"""lanelog: a partitioned message log inside the MySQL or MariaDB that a team already runs.

Publishers append messages under a key. Each key is a lane, with one order and one owner per group. Consumer groups read
the same log independently. After a crash, another process continues from the rows that were committed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError(
        "lanelog does not run on Windows: it needs the clocks, signals and forks of Linux. Run it in WSL 2 or in a "
        "container; the database may be on Windows"
    )

from lanelog._base.payloads.codec import Codec
from lanelog._base.retry import RetryPolicy
from lanelog.batches import Batch, Messages
from lanelog.client import Client, connect
from lanelog.config import AckPolicy, Order, SubscriptionConfig
from lanelog.errors import (
    AlreadySettled,
    ClosedError,
    ConfigurationError,
    DatabaseError,
    LanelogError,
    LeaseLost,
    PayloadTooLarge,
    SchemaError,
)
from lanelog.message import DeadLetter, Message, Outgoing, Postpone, Publication, Receipt, Reject, Retry

if TYPE_CHECKING:
    from lanelog.deliveries import Deliveries
    from lanelog.options import ConnectOptions, SubscriptionOptions
    from lanelog.subscriber import Subscription, SubscriptionState, SubscriptionStats

    __version__: str

__all__ = [
    "AckPolicy",
    "AlreadySettled",
    "Batch",
    "Client",
    "ClosedError",
    "Codec",
    "ConfigurationError",
    "ConnectOptions",
    "DatabaseError",
    "DeadLetter",
    "Deliveries",
    "LanelogError",
    "LeaseLost",
    "Message",
    "Messages",
    "Order",
    "Outgoing",
    "PayloadTooLarge",
    "Postpone",
    "Publication",
    "Receipt",
    "Reject",
    "Retry",
    "RetryPolicy",
    "SchemaError",
    "Subscription",
    "SubscriptionConfig",
    "SubscriptionOptions",
    "SubscriptionState",
    "SubscriptionStats",
    "connect",
]

_LATER = {
    "ConnectOptions": "lanelog.options",
    "Deliveries": "lanelog.deliveries",
    "Subscription": "lanelog.subscriber",
    "SubscriptionOptions": "lanelog.options",
    "SubscriptionState": "lanelog.subscriber",
    "SubscriptionStats": "lanelog.subscriber",
}
"""Names that only some processes need, by module."""


def __getattr__(name: str) -> object:
    """Import a name at its first use, because `import lanelog` must stay light. `__version__`: the installed one."""
    if name == "__version__":
        from importlib.metadata import version

        found = globals()[name] = version("lanelog")
        return found
    if name not in _LATER:
        raise AttributeError(f"module 'lanelog' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "__version__"})
