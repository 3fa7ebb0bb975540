"""Every value that administration returns, under one roof.

Owns nothing itself: what was seen is in `_seen`, what was changed in `_changed`. Rooms of this package and the command
line import from here; applications from `lanelog.admin`.
"""

from __future__ import annotations

from lanelog.admin._changed import (
    Deleted,
    Finding,
    GroupDeleted,
    Maintained,
    Paused,
    Purged,
    Redriven,
    Released,
    Resumed,
    Skipped,
    Sought,
    SoughtLane,
    TopicDeleted,
)
from lanelog.admin._seen import (
    DeadLetterInfo,
    DeadLetterReason,
    GroupInfo,
    GroupState,
    HistoryInfo,
    LaneInfo,
    LeaseInfo,
    MemberInfo,
    MessageInfo,
    MessageState,
    OffsetInfo,
    OwnerState,
    TopicInfo,
)

__all__ = [
    "DeadLetterInfo",
    "DeadLetterReason",
    "Deleted",
    "Finding",
    "GroupDeleted",
    "GroupInfo",
    "GroupState",
    "HistoryInfo",
    "LaneInfo",
    "LeaseInfo",
    "Maintained",
    "MemberInfo",
    "MessageInfo",
    "MessageState",
    "OffsetInfo",
    "OwnerState",
    "Paused",
    "Purged",
    "Redriven",
    "Released",
    "Resumed",
    "Skipped",
    "Sought",
    "SoughtLane",
    "TopicDeleted",
    "TopicInfo",
]
