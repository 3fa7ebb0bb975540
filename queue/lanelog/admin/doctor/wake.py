"""Whether hints of new messages reach the subscribers from here: for the doctor.

Owns the sentence, and how many should have been reached and were not. Each subscriber that this client may send to gets
a datagram of no topic, which makes nobody poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog._hints.datagram import Hint
from lanelog._hints.host import own_host
from lanelog._hints.route import ACROSS, deliver, target_of
from lanelog._stores.members import heartbeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Database, Executor
    from lanelog._stores.members.heartbeats import WakeEndpoint

_NO_TOPIC = Hint(0, new_lanes=False)


@frozen
class Reach:
    """How many subscribers hints reach from here."""

    said: str
    missed: int = 0
    """Subscriptions on this host that want hints, and whose sockets took none."""


def reach(database: Database, cx: Executor) -> Reach:
    """Say how many subscribers there are, how many want hints, and how many of those are reached from here."""
    if not own_host():
        return Reach("this system has none; messages of other processes are found by polling")
    if database.tables_version < heartbeats.VERSION_WITH_WAKE_ENDPOINT:
        return Reach("the tables have no columns for them; messages of other processes are found by polling")
    found = heartbeats.all_wake_endpoints(cx, mariadb=database.facts().mariadb)
    own = [each for each, here in found if here]
    wanted = [each for each in own if each.address]
    near = [each for each in wanted if each.host == own_host()]
    far = [each for each in wanted if each.host != own_host()]
    reached = _sent(database, near)
    said = f"{len(wanted)} of {len(own)} subscriptions want them; on this host {len(near)}, reached {reached}"
    if far:
        named = [each for each in far if ACROSS in each.address]
        said += f"; elsewhere {len(far)}, {len(named)} of them with wake_address, sent to {_sent(database, named)}"
        said += "" if database.config.wake_networks else ": this client has no wake_networks"
    if len(own) < len(found):
        said += f"; {len(found) - len(own)} that another server wrote are sent none"
    return Reach(said, missed=len(near) - reached)


def _sent(database: Database, endpoints: Sequence[WakeEndpoint]) -> int:
    """How many sockets took a datagram. Nobody knows if one that went to another host came there."""
    targets = (target_of(each, database.config.wake_networks) for each in endpoints)
    return deliver([each for each in targets if each is not None], _NO_TOPIC)
