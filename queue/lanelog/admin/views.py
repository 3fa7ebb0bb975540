"""Every value that administration returns, under one roof.

Owns nothing itself: what was seen is in `topology` and `messages`, what was changed in `results`. Rooms of this
package and the command line import from here; applications from `lanelog.admin`.
"""

from __future__ import annotations

from lanelog._engine.contradictions import Contradiction
from lanelog.admin.read.problems import Problem, Rank
from lanelog.admin.read.status import Status
from lanelog.admin.types.messages import (
    DeadLetterInfo,
    DeadLetterReason,
    GroupState,
    HistoryInfo,
    MessageInfo,
    ScheduledInfo,
)
from lanelog.admin.types.results import (
    Deleted,
    Finding,
    GroupDeleted,
    Maintained,
    OpenLanes,
    Paused,
    Purged,
    Redriven,
    Released,
    Resumed,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    Skipped,
    Sought,
    SoughtLane,
    TopicDeleted,
)
from lanelog.admin.types.topology import (
    GroupInfo,
    LaneInfo,
    LeaseInfo,
    MemberInfo,
    MessageState,
    OffsetInfo,
    OwnerState,
    ScheduleInfo,
    TopicInfo,
)

__all__ = [
    "Contradiction",
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
    "OpenLanes",
    "OwnerState",
    "Paused",
    "Problem",
    "Purged",
    "Rank",
    "Redriven",
    "Released",
    "Resumed",
    "ScheduleInfo",
    "SchedulePaused",
    "ScheduleRemoved",
    "ScheduleResumed",
    "ScheduledInfo",
    "Skipped",
    "Sought",
    "SoughtLane",
    "Status",
    "TopicDeleted",
    "TopicInfo",
]
