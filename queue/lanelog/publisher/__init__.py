"""Publishing: what `client.publish`, `publish_many` and `transaction` do.

Never reads a message for delivery. Holds no lock of a lane for longer than its own transaction.

Every way to publish is the same transaction: lock the heads of the lanes, give out the next offsets, insert, commit.
The head's lock is held to the commit, so that no reader sees offset n + 1 of a lane before offset n. A message with a
delay goes into the schedule instead, under the same lock, which makes ids unique in both. Three modules have such a
transaction: `batch` for the messages of some threads, which `group` brings together by the plan in `topic_queue`, and
for a message that is alone, in one round trip; `bulk` for many messages of one call; `caller` within a caller's
transaction. What they share with other callers is in `_log/append/`.
`open_lane_routing` gives messages without a key their lanes, `lock_waiters` bounds the connections that wait, and
`lock_report` says which connection holds a lane.
"""

from __future__ import annotations

from lanelog.publisher.announcements import Announcements
from lanelog.publisher.publisher import Publisher

__all__ = ["Announcements", "Publisher"]
