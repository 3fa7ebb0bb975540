"""The heads of a topic's lanes: a follower of the topic compares them from poll to poll.

Owns this list. Reads one row for each lane, and no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._log.lookup.known import pages
from lanelog.admin.lookup.arguments import limit_of
from lanelog.admin.lookup.given import given_topic

if TYPE_CHECKING:
    from lanelog._database import Database


def heads(database: Database, topic: str, limit: int) -> dict[str, int]:
    """See `Admin.heads`."""
    limit_of(limit)
    given_topic(database, topic)
    found: dict[str, int] = {}
    for page in pages(database, topic):
        found.update(page[: limit - len(found)])
        if len(found) == limit:
            break
    return found
