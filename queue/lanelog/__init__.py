"""lanelog: a partitioned message log inside the MySQL or MariaDB that a team already runs.

Publishers append messages under a key; each key is a lane handled in order by one worker at a time; consumer groups
read the same log independently; a crash resumes exactly where it stopped.
"""

from __future__ import annotations

from lanelog._retry import RetryPolicy
from lanelog.client import Client, connect
from lanelog.config import AckPolicy, Order, SubscriptionConfig
from lanelog.deliveries import Deliveries
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
from lanelog.message import Codec, DeadLetter, Message, Outgoing, Postpone, Receipt, Reject, Retry
from lanelog.subscriber import Subscription, SubscriptionState, SubscriptionStats

__all__ = [
    "AckPolicy",
    "AlreadySettled",
    "Client",
    "ClosedError",
    "Codec",
    "ConfigurationError",
    "DatabaseError",
    "DeadLetter",
    "Deliveries",
    "LanelogError",
    "LeaseLost",
    "Message",
    "Order",
    "Outgoing",
    "PayloadTooLarge",
    "Postpone",
    "Receipt",
    "Reject",
    "Retry",
    "RetryPolicy",
    "SchemaError",
    "Subscription",
    "SubscriptionConfig",
    "SubscriptionState",
    "SubscriptionStats",
    "connect",
]
