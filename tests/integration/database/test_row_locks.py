"""Servers that take SKIP LOCKED and lock nothing: two sessions prove it, on a row that nobody else waits for."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import lanelog
from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog._database import Database, Executor, row_locks
from lanelog._database.connection.driver import SILENCE_SECONDS
from lanelog._engine.leasing.row_locks import RowLocks
from lanelog._stores.members import heartbeats
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError, DatabaseError
from lanelog.migrations import catalogue
from support.proxy import Proxy, proxy_to
from support.sql import one, rows
from support.waiting import accept, eventually

SKIPPING = b"FOR UPDATE SKIP LOCKED"
LOCKS_NOTHING = "locks no rows.*Use MySQL or MariaDB"


@pytest.fixture
def imitation(lanelog_url: str) -> Iterator[Proxy]:
    """A way to the server on which SKIP LOCKED is taken and locks nothing."""
    with proxy_to(lanelog_url) as proxy:
        proxy.instead = {SKIPPING: b" " * len(SKIPPING)}
        yield proxy


def test_migrate_and_doctor_refuse_a_server_that_locks_nothing(imitation: Proxy) -> None:
    """`migrate` raises the sentence, also where the tables are there; `doctor` finds it, and goes on."""
    with lanelog.connect(imitation.url) as client:
        with pytest.raises(ConfigurationError, match=LOCKS_NOTHING):
            client.migrate()
        found = {finding.check: finding for finding in client.admin.doctor()}
        assert found["row locks"].status == "error"
        assert "locks no rows" in found["row locks"].detail
        assert found["contradictions"].status == "ok"


def test_a_subscription_takes_no_lane_where_nothing_is_locked(imitation: Proxy, lanelog_client: Client) -> None:
    """The subscription fails with the sentence after its first heartbeats. It takes no lane and handles no message."""
    lanelog_client.publish("t", "k", b"x")
    with lanelog.connect(imitation.url) as client:
        subscription = client.subscribe("t", "g", accept)
        eventually(lambda: subscription.failure is not None)
        with pytest.raises(ConfigurationError, match=LOCKS_NOTHING):
            raise subscription.failure
        assert subscription.stats().acked == 0
        assert [lane.owner for lane in lanelog_client.admin.lanes("t", "g")] == [None]


def test_the_proof_is_put_off_while_no_connection_is_free(imitation: Proxy, lanelog_client: Client, raw: Any) -> None:
    """A pool whose connections are all in use: nothing is waited for or refused, and the proof is made later."""
    _, (group, topic, owner) = proving(lanelog_client, raw, "heartbeat")
    database = Database(ConnectConfig.from_url(imitation.url, pool_size=2))
    session, proof = database.session("keeper"), RowLocks(database, again_seconds=0.0)
    session.ensure()
    try:
        with database.transaction(), database.transaction():
            proof.check(session, GroupTopic(topic=topic, group=group), owner)
        with pytest.raises(ConfigurationError, match=LOCKS_NOTHING):
            proof.check(session, GroupTopic(topic=topic, group=group), owner)
    finally:
        session.close()
        database.close()


@pytest.mark.parametrize("table", ["heartbeat", "version"])
def test_a_real_server_proves_itself_once(database: Database, lanelog_client: Client, raw: Any, table: str) -> None:
    """The row that one session has locked is skipped by the other, and free again after the proof."""
    row, args = proving(lanelog_client, raw, table)
    with closing(database.session("test")) as session, database.autocommit() as other:
        assert row_locks.prove(session, other, row, args, server=database.facts())
        assert other.one(f"{row} FOR UPDATE SKIP LOCKED", args) is not None


@pytest.mark.parametrize("table", ["heartbeat", "version"])
def test_a_row_that_is_gone_or_locked_by_another_proves_nothing(
    database: Database, lanelog_client: Client, raw: Any, table: str
) -> None:
    """Nothing is waited for, and nothing is concluded: a second process makes the same proof, or a row is deleted."""
    row, args = proving(lanelog_client, raw, table)
    with closing(database.session("test")) as session, database.autocommit() as other:
        rows(raw, "START TRANSACTION")
        rows(raw, f"{row} FOR UPDATE", *args)
        assert not row_locks.prove(session, other, row, args, server=database.facts())
        rows(raw, "ROLLBACK")
        assert not row_locks.prove(session, other, row, ("none",) * len(args), server=database.facts())


def test_a_lock_that_was_lost_with_its_session_proves_nothing(
    database: Database, lanelog_client: Client, raw: Any
) -> None:
    """If the first session dies between its lock and the second one's read, no server is refused for that."""
    row, args = proving(lanelog_client, raw, "version")
    session = database.session("test")

    class Killing:
        """The second session, before whose locking read the first one ends."""

        def __init__(self, other: Executor) -> None:
            self.other = other

        def one(self, sql: str, args: Any = ()) -> Any:
            if sql.endswith("SKIP LOCKED"):
                rows(raw, f"KILL {session.connection_id}")
                eventually(lambda: self.other.one(sql, args) is not None)
            return self.other.one(sql, args)

    try:
        with database.autocommit() as other, pytest.raises(DatabaseError):
            row_locks.prove(session, Killing(other), row, args, server=database.facts())  # type: ignore[arg-type]
    finally:
        session.close()


@pytest.mark.parametrize("asked", [1, 3], ids=["the read", "the locking read"])
def test_who_waits_to_change_the_table_holds_up_no_proof(
    database: Database, lanelog_client: Client, raw: Any, open_raw: Any, asked: int
) -> None:
    """LOCK TABLES comes in between, waits for the first session, and gets the table soon: the proof is put off."""
    row, args = proving(lanelog_client, raw, "version")
    session, locking = database.session("test"), open_raw()
    waiting = threading.Thread(target=rows, args=(locking, "LOCK TABLES queue_schema WRITE"))
    waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'LOCK TABLES queue_schema%'"

    class Held:
        """The second session, before one of whose statements LOCK TABLES comes."""

        def __init__(self, other: Executor) -> None:
            self.other, self.statements = other, 0

        def one(self, sql: str, args: Any = ()) -> Any:
            self.statements += 1
            if self.statements == asked:
                waiting.start()
                eventually(lambda: one(raw, waits))
            return self.other.one(sql, args)

    began = time.monotonic()
    try:
        with database.autocommit() as other, pytest.raises(DatabaseError):
            row_locks.prove(session, Held(other), row, args, server=database.facts())  # type: ignore[arg-type]
        waiting.join(SILENCE_SECONDS)
        assert not waiting.is_alive()
        assert session.connected
        assert time.monotonic() - began < SILENCE_SECONDS / 2
    finally:
        rows(locking, "UNLOCK TABLES")
        session.close()


def proving(client: Client, raw: Any, table: str) -> tuple[str, tuple[Any, ...]]:
    """The SELECT of a row that is there, and its arguments."""
    if table == "version":
        return catalogue.ROW, (one(raw, "SELECT MAX(version) FROM queue_schema"),)
    client.subscribe("t", "g", accept).stop()
    return heartbeats.ROW, ("g", "t", one(raw, "SELECT subscriber_name FROM queue_subscriber_heartbeats"))
