"""One look at all tables that matter to the simulation, and what can be read off them.

Owns the reading; never judges and never writes. `simulation_record` compares one look with the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

from attrs import define

from support.simulation import TOPIC
from support.sql import rows

LETTERS = f"{TOPIC}_dlq"


class Place(NamedTuple):
    """One message, for one group."""

    group: str
    key: str
    offset: int


class Lease(NamedTuple):
    """Who has a lane, under which fencing token."""

    owner: str
    epoch: int


class Row(NamedTuple):
    """A delivery row."""

    through: int
    acked: int
    count: int
    postponed: int
    epoch: int
    alone: int
    crashed: int
    due: int
    error: str | None


class Offsets(NamedTuple):
    """An offsets row."""

    acked: int
    mark: int
    epoch: int


class Letter(NamedTuple):
    """A dead letter: which message of which group, and how it failed."""

    place: Place
    count: int
    error: str
    id: str
    """That of the message, before it failed first."""
    settled: bool
    """It was redriven."""


@define
class Tables:
    """One look at everything that matters."""

    heads: dict[str, int]
    top: tuple[int, int]
    log: dict[str, set[int]]
    offsets: dict[tuple[str, str], Offsets]
    deliveries: dict[Place, Row]
    leases: dict[tuple[str, str], Lease]
    letters: dict[tuple[str, int], Letter]
    redriven: dict[tuple[str, int], tuple[str, str]]
    """For which group, and the id of the message before it failed first."""
    effects: Counter[Place]

    @classmethod
    def read(cls, raw: Any) -> Tables:
        heads = {
            key: (head, epoch)
            for key, head, epoch in rows(
                raw, "SELECT partition_key, head_offset, max_epoch FROM queue_partitions WHERE topic = %s", TOPIC
            )
        }
        log: dict[str, set[int]] = defaultdict(set)
        letters: dict[tuple[str, int], Letter] = {}
        gone = set(
            rows(
                raw,
                "SELECT partition_key, message_offset FROM queue_delivery_state"
                " WHERE consumer_group = '' AND topic = %s",
                LETTERS,
            )
        )
        redriven: dict[tuple[str, int], tuple[str, str]] = {}
        for topic, key, offset, target, name, group, original, count, error in rows(
            raw,
            "SELECT topic, partition_key, `offset`, target_group,"
            " JSON_UNQUOTE(JSON_EXTRACT(metadata, '$.\"lanelog.original_id\"')), failed_group, original_offset,"
            " failure_count, last_error FROM queue_messages",
        ):
            if topic == TOPIC:
                log[key].add(offset)
                if target:
                    redriven[key, offset] = (target, name)
            else:
                letters[key, offset] = Letter(Place(group, key, original), count, error, name, (key, offset) in gone)
        return cls(
            top=heads.pop("", (0, 0)),
            heads={key: head for key, (head, _) in heads.items()},
            log=log,
            letters=letters,
            redriven=redriven,
            offsets={
                (group, key): Offsets(*rest)
                for group, key, *rest in rows(
                    raw,
                    "SELECT consumer_group, partition_key, offset_acked, marked_through, marked_epoch"
                    " FROM queue_offsets WHERE topic = %s",
                    TOPIC,
                )
            },
            deliveries={
                Place(group, key, offset): Row(*rest)
                for group, key, offset, *rest in rows(
                    raw,
                    "SELECT consumer_group, partition_key, message_offset, through_offset, acked, retry_count,"
                    " postponed, lease_epoch, alone, crashed, invisible_until, last_error FROM queue_delivery_state"
                    " WHERE topic = %s",
                    TOPIC,
                )
            },
            leases={
                (group, key): Lease(owner, epoch)
                for group, key, owner, epoch in rows(
                    raw, "SELECT consumer_group, partition_key, leased_by, lease_epoch FROM queue_partition_leases"
                )
            },
            effects=Counter(Place(*found) for found in rows(raw, "SELECT * FROM effects")),
        )

    def floor(self, key: str) -> int:
        found = self.offsets.get(("", key))
        return 0 if found is None else found.acked

    def watermark(self, group: str, key: str) -> int:
        found = self.offsets.get((group, key))
        return max(self.floor(key), 0 if found is None else found.acked)

    def settled(self, place: Place) -> bool:
        """Whether this group will never see the message again."""
        group, key, offset = place
        if key not in self.heads:
            return offset <= self.top[0]  # purged
        if offset <= self.watermark(group, key):
            return True
        return any(
            row.acked and at.offset <= offset <= row.through
            for at, row in self.deliveries.items()
            if (at.group, at.key) == (group, key)
        )

    def in_flight(self, place: Place) -> tuple[int, int]:
        """(epoch, number) of the attempt that is written down as handed out; (0, 0): none."""
        group, key, offset = place
        row = self.deliveries.get(place)
        if row is not None:
            return (row.epoch, row.count) if row.epoch and not row.acked else (0, 0)
        found = self.offsets.get((group, key))
        if found is not None and found.acked < offset <= found.mark and not self.settled(place):
            return found.epoch, 1
        return 0, 0

    def waiting_letters(self, group: str) -> list[Letter]:
        """A group's dead letters that were not redriven, in order."""
        found = sorted((place, letter) for place, letter in self.letters.items() if letter.place.group == group)
        return [letter for _, letter in found if not letter.settled]

    def of_lane(self, group: str, key: str) -> tuple[Offsets | None, dict[Place, Row]]:
        """What only the lane's owner may write."""
        mine = {place: row for place, row in self.deliveries.items() if (place.group, place.key) == (group, key)}
        return self.offsets.get((group, key)), mine
