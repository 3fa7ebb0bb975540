"""Administration: look into the log and steer it, without writing SQL. `client.admin` is the one `Admin` of a client.

**Looking** never locks, walks no backlog, and every list has a limit. What one answer says of one lane belongs together
(one statement, or one snapshot); a list of lanes of a busy topic is true lane by lane, and a moment old.

**Changing** is one transaction for every step that must hold together, fenced by the lane's epoch, repeated after
errors that may pass, and harmless to repeat. Every verb returns what it changed; with `dry_run=True` it returns what it
would change and changes nothing. What destroys or delivers again takes `dry_run` without a default: the caller decides.

Every method raises ConfigurationError for a topic, group or key that does not exist (naming what is there) and for
malformed arguments, before anything is changed; DatabaseError when the database does not answer or privileges are
missing; SchemaError when the tables are missing; ClosedError when the client was closed.
"""

# fmt: off
# isort: off
from lanelog._engine.contradictions import Contradiction
from lanelog.admin.admin import Admin
from lanelog.admin.operate.problems import Problem, Rank
from lanelog.admin.operate.status import Status
from lanelog.admin.types.messages import (
    DeadLetterInfo, DeadLetterReason, GroupState, HistoryInfo, MessageInfo, ScheduledInfo)
from lanelog.admin.types.results import (
    Deleted, Finding, GroupDeleted, Maintained, OpenLanes, Paused, Purged, Redriven, Released, Resumed, SchedulePaused,
    ScheduleRemoved, ScheduleResumed, Skipped, Sought, SoughtLane, TopicDeleted)
from lanelog.admin.types.topology import (
    GroupInfo, LaneInfo, LeaseInfo, MemberInfo, MessageState, OffsetInfo, OwnerState, ScheduleInfo, TopicInfo)

__all__ = [
    "Admin", "Contradiction", "DeadLetterInfo", "DeadLetterReason", "Deleted", "Finding", "GroupDeleted", "GroupInfo",
    "GroupState", "HistoryInfo", "LaneInfo", "LeaseInfo", "Maintained", "MemberInfo", "MessageInfo", "MessageState",
    "OffsetInfo", "OpenLanes", "OwnerState", "Paused", "Problem", "Purged", "Rank", "Redriven", "Released", "Resumed",
    "ScheduleInfo", "SchedulePaused", "ScheduleRemoved", "ScheduleResumed", "ScheduledInfo", "Skipped", "Sought",
    "SoughtLane", "Status", "TopicDeleted", "TopicInfo",
]
