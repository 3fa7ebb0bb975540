"""`queue_subscriber_heartbeats`: which server wrote the heartbeats, this one or others.

Owns that statement. Never judges an owner, and never decides what a copy of the tables means for anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._database import NOW_MS, Incarnation

if TYPE_CHECKING:
    from lanelog._database import Executor

# Whether this server wrote the first thousand heartbeats, how many of them, the latest, and when the last one ends of
# those that have not left; the clock (PRIMARY).
ORIGINS = f"""SELECT s.incarnation = {{here}}, COUNT(*), MAX(s.heartbeat_at),
       MAX(IF(s.deregistered_at IN (0, s.heartbeat_at), s.expires_at, 0)), {NOW_MS} FROM (
  SELECT incarnation, heartbeat_at, expires_at, deregistered_at
  FROM queue_subscriber_heartbeats FORCE INDEX (PRIMARY) WHERE consumer_group > ''
  ORDER BY consumer_group, topic, subscriber_name LIMIT 1000) s
WHERE s.incarnation <> '' GROUP BY s.incarnation = {{here}}
"""


@frozen
class Origins:
    """Which server wrote the heartbeats: this one, or others. Times in milliseconds, each by its server's clock."""

    here: int = 0
    elsewhere: int = 0
    latest_here: int = 0
    latest_elsewhere: int = 0
    ends_elsewhere: int = (
        0  # the end of the last heartbeat of another server by a member that has not left; 0: all have
    )
    now: int = 0  # by this server's clock

    @property
    def copied(self) -> bool:
        """Whether the tables are a copy of another server's, or the primary has changed and no member is here yet."""
        return self.latest_elsewhere > self.latest_here


def load(cx: Executor, *, mariadb: bool) -> Origins:
    """Return which server wrote the heartbeats. Only on tables of version 2 or newer."""
    rows = cx.query(ORIGINS.format(here=Incarnation.identity_in_sql(mariadb=mariadb)))
    found = {bool(here): tuple(map(int, numbers)) for here, *numbers in rows}
    here, latest_here, *_ = found.get(True, (0, 0))
    elsewhere, latest_elsewhere, ends_elsewhere, now = found.get(False, (0, 0, 0, 0))
    return Origins(here, elsewhere, latest_here, latest_elsewhere, ends_elsewhere, now)
