"""The server's clock, compared with the heartbeats that it dated, and with this machine's.

Owns this question, for the doctor. Changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lanelog._base.checks import MAX_SECONDS
from lanelog._base.text import age, shown
from lanelog._database import NOW_MS
from lanelog._log.lookup.known import CLOCK
from lanelog._stores._counted import LONGEST_MS
from lanelog.admin.doctor.finding import bad, good, warn
from lanelog.errors import SchemaError

if TYPE_CHECKING:
    from lanelog.admin.doctor.finding import Patient
    from lanelog.admin.types.results import Finding

# Of a thousand members, the one whose heartbeat lies farthest ahead: the time at which it was written, and its end
# if that is later than any lease ends; the server's clock (PRIMARY).
FARTHEST: Final = f"""SELECT s.consumer_group, s.topic, s.subscriber_name, s.heartbeat_at, s.ends, {NOW_MS} FROM (
  SELECT consumer_group, topic, subscriber_name, heartbeat_at,
         IF(expires_at > {NOW_MS} + {LONGEST_MS}, expires_at, 0) AS ends
  FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group > ''
  ORDER BY consumer_group, topic, subscriber_name LIMIT 1000) s
ORDER BY GREATEST(s.heartbeat_at, s.ends) DESC LIMIT 1"""

_OFF, _BACK = 60.0, 5.0  # seconds


def clock(patient: Patient) -> Finding:
    """Whether the server's clock went back, or differs from this machine's."""
    before = time.time()
    try:
        row = patient.cx.one(FARTHEST)
    except SchemaError:
        row = None
    if row is None:
        row = ("", "", "", 0, 0, *(patient.cx.one(CLOCK) or ()))
    group, topic, owner, written, ends, now = row
    there, ahead = int(now) / 1000, (max(int(written), int(ends)) - int(now)) / 1000
    if ahead > _BACK:
        whose = f"member {shown(owner)} of group {shown(group)} of topic {shown(topic)}"
        what = "a heartbeat that it dated itself" if written > now else "the end of a heartbeat"
        return bad(
            f"the server's clock is {_long(ahead)} behind {what}, of {whose}: it went back, or another program "
            "wrote that row",
            "let NTP slew the clock instead of stepping it, on every server that may become the primary; if no "
            "clock was set, find out what wrote the row: others take that member's lanes after `lease_duration`",
        )
    off = there - (before + time.time()) / 2
    if abs(off) > _OFF:
        return warn(
            f"the server's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this machine's: ages "
            "and leases are right, times of `seek` and `purge` are the server's",
            "run NTP on both",
        )
    return good(f"within {_OFF:.0f} s of this machine's")


def _long(seconds: float) -> str:
    return age(seconds) if seconds < MAX_SECONDS else "centuries"
