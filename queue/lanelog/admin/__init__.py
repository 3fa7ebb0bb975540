"""Administration: read the log and change it, without SQL. `client.admin` is the `Admin` of a client.

**Reading** takes no locks and reads no backlog. Every list has a limit. One answer about one lane is consistent: it
comes from one statement or one snapshot. In a list of many lanes each lane is consistent, and may have changed since.

**Changing** uses one transaction for each step that must hold together. The lane's epoch fences it. It is repeated
after errors that may pass, and a repetition does no harm. Every method returns what it changed. With `dry_run=True` it
returns what it would change, and changes nothing. A method that destroys something or delivers it again has no default
for `dry_run`: the caller decides.
"""

# fmt: off
# isort: off
from lanelog._log.lookup.owners import LastMember, OwnerState
from lanelog._log.repair import Contradiction
from lanelog._process.workload import OpenAck, RunningHandler, Workload
from lanelog.admin.admin import Admin
from lanelog.admin.operate.figures import Figures, GroupFigures, ServerFigures
from lanelog.admin.operate.problem import Problem, Rank
from lanelog.admin.operate.server import TableSize
from lanelog.admin.operate.status import Status
from lanelog.admin.types.messages import (
    DeadLetterCounts, DeadLetterInfo, DeadLetterPage, DeadLetterReason, GroupState, HistoryInfo, MessageInfo,
    ScheduledInfo)
from lanelog.admin.types.results import (
    AuditInfo, Deleted, Finding, GroupDeleted, Maintained, OpenLanes, Paused, Purged, Redriven, Released, Resumed,
    Retried, SchedulePaused, ScheduleRemoved, ScheduleResumed, ScheduleRun, Skipped, Sought, SoughtLane, TopicDeleted)
from lanelog.admin.types.topology import (
    GroupInfo, LaneInfo, LeaseInfo, MemberInfo, MessageState, OffsetInfo, ScheduleInfo, TopicInfo)

__all__ = [
    "Admin", "AuditInfo", "Contradiction", "DeadLetterCounts", "DeadLetterInfo", "DeadLetterPage", "DeadLetterReason",
    "Deleted", "Figures", "Finding", "GroupDeleted", "GroupFigures", "GroupInfo", "GroupState", "HistoryInfo",
    "LaneInfo", "LastMember", "LeaseInfo", "Maintained", "MemberInfo", "MessageInfo", "MessageState", "OffsetInfo",
    "OpenAck", "OpenLanes", "OwnerState", "Paused", "Problem", "Purged", "Rank", "Redriven", "Released", "Resumed",
    "Retried", "RunningHandler", "ScheduleInfo", "SchedulePaused", "ScheduleRemoved", "ScheduleResumed", "ScheduleRun",
    "ScheduledInfo", "ServerFigures", "Skipped", "Sought", "SoughtLane", "Status", "TableSize", "TopicDeleted",
    "TopicInfo", "Workload",
]
