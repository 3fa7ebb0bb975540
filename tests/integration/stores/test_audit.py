"""The store of what operators did, by the bare executor: rows in, rows out."""

from typing import Any

from attrs import astuple, evolve

from lanelog._database import Executor
from lanelog._stores import audit
from lanelog._stores.audit import AuditRow
from support.sql import one, rows

WHAT = {"verb": "skip", "topic": "t", "group": "g", "key": "k", "choice": "offset 3", "messages": 1}
WHO = {"by": "ann", "reason": "it hangs", "account": "app@%", "host": "here", "pid": 7}
ROW = AuditRow(id="a" * 32, part=0, **WHAT, **WHO)  # type: ignore[arg-type]
COLUMNS = "id, part, verb, topic, consumer_group, partition_key, choice, messages, acted_by, reason, account, host, pid"


def test_rows_stay_as_they_were_recorded_and_old_ones_leave_in_batches(cx: Executor, raw: Any) -> None:
    """A batch at a time. An account that may not delete them is in `integration/admin/test_audit`."""
    for part in range(audit.BATCH + 2):
        audit.record(cx, evolve(ROW, part=part))
    rows(raw, "UPDATE queue_audit SET acted_at = acted_at - %s WHERE part > 0", audit.RETENTION_MS + 1000)
    left = []
    for _ in range(2):
        audit.forget(cx)
        left.append(one(raw, "SELECT COUNT(*) FROM queue_audit"))
    assert left == [2, 1]
    assert rows(raw, f"SELECT {COLUMNS} FROM queue_audit") == [astuple(ROW)]
