"""The newest messages of a topic, over its lanes.

Owns which messages these are, by the time at which their rows were inserted. While one clock gives that time, it does
not fall within a lane, so the newest ones of a lane are its last ones. After a failover to a server whose clock is
behind, it may fall: until that clock has caught up, messages of a lane may be missing.

Reads when the last message of each lane was inserted, and then no more messages than are wanted at a time, fewer than a
dozen times.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING

from lanelog._log.lookup.known import read
from lanelog._stores._points import fitting, points
from lanelog.admin.read import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lanelog._database import Database
    from lanelog.admin.types.messages import MessageInfo

    Points = Sequence[tuple[str, int]]
    Stamp = tuple[int, str, int, int]
    """When a message was inserted, its key and offset, and the bytes of its payload."""

# When messages at exact offsets of some lanes were inserted, and how large they are (PRIMARY).
STAMPS = """
SELECT created_at, partition_key, `offset`, payload_bytes FROM queue_messages FORCE INDEX (PRIMARY)
WHERE topic = %s AND (partition_key, `offset`) IN ({points})
"""


def newest(database: Database, topic: str, heads: Mapping[str, int], most: int) -> Iterator[MessageInfo]:
    """Yield at most so many of the newest messages up to these heads, the oldest first.

    A message that is collected meanwhile is left out.
    """
    found = sorted(chosen(partial(_stamps, database, topic), heads, most))
    for part in fitting(found, [size for *_, size in found], messages.BYTES_MAX):
        yield from messages.at(database, topic, [(key, offset) for _, key, offset, _ in part])


def chosen(stamps: Callable[[Points], Iterable[Stamp]], heads: Mapping[str, int], most: int) -> list[Stamp]:
    """Return the newest messages. `stamps` reads those that are there of some.

    A lane is read further back while all that was read of it is among them. Offsets are dense, and what is missing was
    collected with all that is older, so a lane whose piece has a message less than it could have has no more.
    """
    if not most:
        return []
    found: list[Stamp] = []
    depth = dict.fromkeys(heads, 0)
    deeper = [key for key, head in heads.items() if head]
    while deeper:
        offsets = []
        for key in deeper:
            end = heads[key] - depth[key]
            depth[key] = min(heads[key], max(1, 2 * depth[key]), most)
            offsets += [(key, offset) for offset in range(end, heads[key] - depth[key], -1)]
        found = nlargest(most, [*found, *stamps(offsets)])
        taken = Counter(key for _, key, _, _ in found)
        deeper = [key for key in deeper if taken[key] == depth[key] < min(heads[key], most)]
    return found


def _stamps(database: Database, topic: str, offsets: Points) -> list[Stamp]:
    found = read(database, points, "reading messages", STAMPS, offsets, before=[topic])
    return [(created, key, offset, size) for created, key, offset, size in found]
