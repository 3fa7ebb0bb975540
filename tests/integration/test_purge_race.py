"""Purge, collection and publishing of the same lanes, all at once."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import lanelog
from lanelog import Client, Subscription
from lanelog._database import Database
from lanelog._engine.janitor import Janitor
from lanelog._engine.purge import Purge
from support.sql import audit, one, rows
from support.waiting import Record

KEYS = [f"k{n}" for n in range(4)]
PUBLISHERS = 4
EACH = 50


class Race:
    """Threads that publish to few keys, which drain all the time, and others that collect and purge them."""

    def __init__(self, client: Client, database: Database) -> None:
        self.client, self.database = client, database
        self.handled = {"g": Record(), "h": Record()}
        self.receipts: dict[str, list[int]] = defaultdict(list)
        self.errors = Record()
        self._done, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        """Until every message was handled by both groups."""
        groups = [self._subscribe(group, record) for group, record in self.handled.items()]
        disturbers = [self._thread(self._purge), self._thread(self._purge), self._thread(self._collect, groups[0])]
        publishers = [self._thread(self._publish, seed) for seed in range(PUBLISHERS)]
        try:
            for thread in publishers:
                thread.join(60)
            for record in self.handled.values():
                record.wait(PUBLISHERS * EACH, within=30)
        finally:
            self._done.set()
            for thread in disturbers:
                thread.join(20)

    def _subscribe(self, group: str, record: Record) -> Subscription:
        return self.client.subscribe(
            "t", group, lambda m: record((m.key, m.offset, m.fencing_token, m.attempt)), retention=0
        )

    def _thread(self, work: Callable[..., None], *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except Exception as error:  # noqa: BLE001 - the test looks at them
                self.errors(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def _publish(self, seed: int) -> None:
        dice = random.Random(seed)
        for n in range(EACH):
            key = dice.choice(KEYS)
            offset = self.client.publish("t", key, f"{seed}-{n}").offset
            with self._lock:
                self.receipts[key].append(offset)
            # Half of the time, let the lane drain before the next message: only then may it be purged.
            if dice.random() < 0.5:
                self.handled["g"].until(lambda items, k=key, o=offset: any(item[:2] == (k, o) for item in items))

    def _purge(self) -> None:
        session = self.database.session("purging")
        while not self._done.is_set():
            for key in KEYS:
                Purge(session).drained("t", key)
        session.close()

    def _collect(self, subscription: Subscription) -> None:
        janitor = Janitor(subscription._engine.host)
        while not self._done.is_set():
            for state in janitor._topics.values():
                state.not_before.clear()
            janitor.turn(0.0)
        janitor.close()


@pytest.fixture
def race(lanelog_url: str, database: Database, raw: Any) -> Any:
    """A race that was run, while the server wrote down which leases were born and which lanes were purged."""
    born = ("who, lane, a", "NEW.consumer_group, NEW.partition_key, NEW.lease_epoch")
    audit(raw, "births", "INSERT", "queue_partition_leases", *born)
    audit(raw, "purges", "DELETE", "queue_partitions", "lane, a", "OLD.partition_key, OLD.head_offset")
    with lanelog.connect(lanelog_url, lane_idle_purge=0.001) as client:
        race = Race(client, database)
        race.run()
    return race


def test_no_offset_and_no_token_is_used_twice_while_purge_and_publish_race(race: Race, raw: Any) -> None:
    """Every message is handled once, in order, by both groups; offsets and fencing tokens only grow."""
    assert race.errors.items == []
    assert one(raw, "SELECT COUNT(*) FROM purges WHERE lane <> ''") >= 3, "nothing was purged: there was no race"
    for key in KEYS:
        offsets = sorted(race.receipts[key])
        assert len(set(offsets)) == len(offsets), "an offset was used twice"
        for group, record in race.handled.items():
            mine = [item for item in record.items if item[0] == key]
            assert [offset for _, offset, _, _ in mine] == offsets
            tokens = [token for _, _, token, _ in mine]
            assert tokens == sorted(tokens)
            assert {attempt for *_, attempt in mine} <= {1}
            births = rows(raw, "SELECT a FROM births WHERE who = %s AND lane = %s ORDER BY n", group, key)
            assert births == sorted(set(births)), "a fencing token was used twice"
