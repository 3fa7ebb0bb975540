"""Whether hints of new messages reach the subscribers from here: for the doctor.

Owns the sentence. Each subscriber on this host is sent a datagram of no topic, which makes nobody look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanelog._hints.datagram import Hint
from lanelog._hints.host import own_host
from lanelog._hints.sender import deliver
from lanelog._stores import heartbeats

if TYPE_CHECKING:
    from lanelog._database import Database, Executor

_NO_TOPIC = Hint(0, new_lanes=False)


def told(database: Database, cx: Executor) -> str:
    """Say how many subscribers there are, how many want hints, and how many of those are reached from here."""
    if not own_host():
        return "this system has none; messages of other processes are found by looking"
    if database.tables_version < heartbeats.VERSION_WITH_WAKE_PLACE:
        return "the tables have no place for them; messages of other processes are found by looking"
    places = heartbeats.all_wake_places(cx)
    wanted = [place for place in places if place.address]
    near = [place for place in wanted if place.host == own_host()]
    reached = deliver(near, _NO_TOPIC)
    return f"{len(wanted)} of {len(places)} subscriptions want them; on this host {len(near)}, reached {reached}"
