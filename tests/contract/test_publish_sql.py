"""What a publisher locks: the heads that it names, in a table of any size. Its plans are in test_plans."""

from collections.abc import Iterator

import pytest

from lanelog._database import Database, Lock
from lanelog._stores.consumers import offsets
from lanelog._stores.log import messages, partitions
from lanelog._stores.log.messages import NewMessage
from lanelog.config import ConnectConfig


@pytest.fixture
def filled(lanelog_url: str) -> Iterator[Database]:
    """A thousand lanes with two messages each."""
    database = Database(ConnectConfig.from_url(lanelog_url))
    keys = [f"k{number:04}" for number in range(1000)]
    with database.transaction() as cx:
        partitions.create_topic(cx, "t")
        offsets.create_floors(cx, "t", keys, 0)
        partitions.create_heads(cx, "t", keys, 2)
        rows = [NewMessage(key, offset, f"i{offset}", b"x", None) for key in keys for offset in (1, 2)]
        messages.insert(cx, "t", rows, cx.max_packet)
    with database.autocommit() as cx:
        for table in ("queue_partitions", "queue_messages"):
            cx.query(f"ANALYZE TABLE {table}")
    yield database
    database.close()


@pytest.mark.parametrize("lanes", [1, 2, 5, 1000])
def test_heads_are_locked_one_by_one_in_a_table_of_any_size(filled: Database, lanes: int) -> None:
    """No optimiser finds a scan cheaper, which would wait for the lanes of others: seen by what is locked."""
    with filled.transaction() as cx:
        cx.execute("DELETE FROM queue_partitions WHERE partition_key >= %s", (f"k{lanes:04}",))
    keys = [f"k{number:04}" for number in range(0, lanes, 2)]
    with filled.transaction() as mine, filled.transaction() as others:
        assert partitions.heads(mine, "t", keys, Lock.FREE) == dict.fromkeys(keys, 2)
        rest = [f"k{number:04}" for number in range(1, lanes, 2)]
        assert partitions.heads(others, "t", rest, Lock.FREE) == dict.fromkeys(rest, 2)
        assert partitions.heads(others, "t", keys, Lock.FREE) == {}
        assert partitions.advance(mine, "t", dict.fromkeys(keys, 3)) == len(keys)
