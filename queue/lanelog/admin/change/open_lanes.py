"""Change the number of a topic's open lanes.

Owns this transaction. Makes and removes no lane: publishers create missing ones, and the janitor removes surplus ones
when they are drained.

Lock order: the topic row, then a new row of `queue_audit`. If the process dies before the COMMIT, nothing has happened.
If it dies later, or the COMMIT is not answered, the repetition finds it done and returns `changed=False`. If two
processes do this at once, the last one counts. Publishers that have not read the new number yet use the old one, and
publish to lanes that are consumed all the same.
"""

from __future__ import annotations

from lanelog._base import open_lane_keys
from lanelog._base.checks import check_integer
from lanelog._base.text import plural
from lanelog._database import Lock
from lanelog._log.lookup.known import no_topic, repeated
from lanelog._stores.log import partitions
from lanelog.admin.audit_entry import Act, Call
from lanelog.admin.lookup import open_lanes
from lanelog.admin.lookup.given import given_topic
from lanelog.admin.types.results import OpenLanes
from lanelog.errors import SchemaError


def set_open_lanes(call: Call, topic: str, lanes: int) -> OpenLanes:
    """See `Admin.set_open_lanes`."""
    database = call.database
    check_integer("lanes", lanes, least=1, most=open_lane_keys.MOST)
    given_topic(database, topic)
    if database.tables_version < open_lane_keys.SINCE:
        raise SchemaError(
            f"the tables in {database.config.database} are of version {database.tables_version}, in which every topic "
            f"has {open_lane_keys.DEFAULT} open lanes: run `lanelog migrate`"
        )
    act = Act(call, "set_open_lanes", topic=topic, choice=plural(lanes, "open lane"))
    before = repeated(database, _set, "setting the number of open lanes", act, topic, lanes)
    return OpenLanes(topic=topic, before=before, lanes=lanes, changed=before != lanes, dry_run=call.dry_run)


def _set(act: Act, topic: str, lanes: int) -> int:
    """Set the number in one transaction. Return the earlier number."""
    with act.database.transaction(hasty=True) as cx:
        if partitions.topic_row(cx, topic, Lock.UPDATE) is None:
            raise no_topic(topic)
        before = open_lanes.count(cx, act.database, topic)
        if before != lanes and not act.dry_run:
            partitions.set_open_lanes(cx, topic, lanes)
            act.record(cx)
        return before
