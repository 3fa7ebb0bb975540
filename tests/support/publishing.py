"""Publishers for tests, and what gets in their way: lanes that somebody holds, a message that the server refuses."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from attrs import frozen

from lanelog._database import Database
from lanelog._log.append.appender import Appender
from lanelog.config import ConnectConfig
from lanelog.publisher import Announcements, Publisher
from support.sql import rows

REFUSED = (
    "CREATE TRIGGER refuse BEFORE INSERT ON queue_messages FOR EACH ROW BEGIN "
    "IF NEW.id = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF; END"
)
"""From now on the server refuses messages with the id `bad`."""


@frozen
class Announced(Announcements):
    """Calls a function with the topic of each commit."""

    call: Callable[[str], object]

    def committed(self, topic: str) -> None:
        self.call(topic)


@contextmanager
def publisher_at(url: str, *, impatient: bool = False, **options: Any) -> Iterator[Publisher]:
    """A publisher with a pool of its own, closed with the block; see `give_up_soon`."""
    with closing(Database(ConnectConfig.from_url(url, **options))) as database:
        if impatient:
            give_up_soon(database)
        with closing(Publisher(database)) as publisher:
            yield publisher


def appender_of(publisher: Publisher, committed: Callable[[str], object] = bool) -> Appender:
    """The way into the log beside this publisher. `committed` is called with the topics."""
    return Appender(publisher.lanes, committed)  # type: ignore[arg-type]


def ensure_lanes(publisher: Publisher, topic: str, keys: Iterable[str]) -> None:
    """Create the missing lanes."""
    appender_of(publisher).ensure_lanes(topic, keys)


def hold(connection: Any, *keys: str) -> None:
    """Lock the heads of lanes, as a caller's transaction does; waits for whoever has them."""
    for key in keys:
        sql = "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = %s FOR UPDATE"
        assert rows(connection, sql, key)


def give_up_soon(database: Database) -> None:
    """The connections that it opens from now on wait for a lock one second, not five."""
    database._driver.lock_wait = 1
