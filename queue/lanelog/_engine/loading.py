"""Loading: lanes that were just acquired, and lanes reloaded after the server restarted, rebuilt from their rows.

Owns these reads, in bulk and outside of any transaction: what a previous owner had to say was committed before its
lease changed hands, and nothing but the new owner writes since. Never acquires a lane. Called by the keeper, on its
connection.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lanelog._engine.lane import Lane
from lanelog._engine.records import LaneSnapshot
from lanelog._stores.deliveries import Deliveries
from lanelog._stores.discovery import Discovery
from lanelog._stores.fetches import Fetches
from lanelog._stores.offsets import Offsets
from lanelog._telemetry import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor
    from lanelog._engine.membership import Membership
    from lanelog._stores.leases import OwnedLane

log = get_logger()


def load(cx: Executor, membership: Membership, leases: Sequence[OwnedLane]) -> list[Lane]:
    """Build the lanes of these leases; one whose head is gone (purged meanwhile) is left out."""
    group, topic = membership.group, membership.topic
    keys = [lease.key for lease in leases]
    heads = Discovery().heads(cx, topic, keys)
    offsets = Offsets().load(cx, group, topic, keys)
    rows = Deliveries().load(cx, group, topic, keys)
    now = time.monotonic()
    lanes = []
    for lease in leases:
        head = heads.get(lease.key)
        if head is None:
            continue
        own, floor = offsets.get((group, lease.key)), offsets.get(("", lease.key))
        snapshot = LaneSnapshot(
            key=lease.key,
            epoch=lease.epoch,
            head=head,
            floor=0 if floor is None else floor.offset_acked,
            offset_acked=None if own is None else own.offset_acked,
            marked_through=0 if own is None else own.marked_through,
            marked_epoch=0 if own is None else own.marked_epoch,
            marked_age=0.0 if own is None else own.marked_age,
            paused=lease.paused,
            rows=rows.get(lease.key, ()),
        )
        lane = Lane.load(snapshot, membership.rules, membership.budget, now)
        if lane.watermark > head:
            log.error("lane.ahead_of_head", topic=topic, key=lane.key, group=group, offset=lane.watermark, head=head)
        lanes.append(lane)
    return lanes


def reload(cx: Executor, membership: Membership, leases: Sequence[OwnedLane]) -> None:
    """Replace what memory believes of these lanes by what the restarted server has; see `Lane.carry_over`.

    Nothing starts meanwhile: the caller has withdrawn the authority to start handlers. What ends meanwhile was
    running, and so is among the offsets whose ids are compared.
    """
    with membership.lock:
        old = {lease.key: membership.lanes[lease.key] for lease in leases if lease.key in membership.lanes}
        vouched = {key: lane.vouched() for key, lane in old.items()}
    points = [(key, offset) for key, ids in vouched.items() for offset in ids]
    found = Fetches().ids(cx, membership.topic, points)
    for lane in load(cx, membership, [lease for lease in leases if lease.key in old]):
        ids = {offset: found[(lane.key, offset)] for offset in vouched[lane.key] if (lane.key, offset) in found}
        membership.replace_lane(old[lane.key], lane, ids)
