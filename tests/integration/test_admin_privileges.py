"""Every verb of administration with an account that lacks a privilege it needs: one clear line, and nothing changed.

In Python and on the command line. What a verb writes is listed table by table, and each of these tables is taken from
an account that may do everything else: a verb of several steps must not have done the first of them.
"""

import secrets
import shlex
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pymysql
import pytest
from attrs import field, frozen

import lanelog
from lanelog import DatabaseError, Message, Reject, Retry
from lanelog.admin import Admin
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.cli import Command, everything
from support.sql import rows
from support.waiting import eventually

PASSWORD = "pw" + secrets.token_hex(8)
WRITES = "INSERT, UPDATE, DELETE"


@frozen
class Verb:
    """A way to call a method of administration, how a terminal says the same, and the tables that it writes."""

    method: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(factory=dict)
    line: str = ""
    """Empty: the command line has no such verb of its own."""
    writes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.method, *(str(value) for value in self.options.values() if value is not True)])


LEASES, STATE, OFFSETS = "queue_partition_leases", "queue_delivery_state", "queue_offsets"
GROUPS, HEADS, MESSAGES = "queue_groups", "queue_partitions", "queue_messages"
HISTORY, SCHEDULED, SCHEDULES = "queue_history", "queue_scheduled", "queue_schedules"
HEARTBEATS = "queue_subscriber_heartbeats"

LOOKS = (
    Verb("topics", line="topics"),
    Verb("topic", ("merge",)),
    Verb("heads", ("merge",)),
    Verb("groups", line="groups"),
    Verb("groups", ("merge",), line="groups merge"),
    Verb("members", ("merge", "builders"), line="members merge builders"),
    Verb("lanes", ("merge", "builders"), line="lanes merge builders"),
    Verb("lanes", ("merge", "builders"), {"order_by": "lag"}, line="lanes merge builders --by lag"),
    Verb("lanes", ("merge", "builders"), {"order_by": "key"}, line="lanes merge builders --by key"),
    Verb("offsets", ("merge",), line="offsets merge"),
    Verb("leases", line="leases"),
    Verb("leases", (), {"stale": True}, line="leases --stale"),
    Verb("message", ("merge", "good"), {"offset": 1}, line="show merge good 1"),
    Verb("messages", ("merge", "good"), line="show merge good"),
    Verb("history", ("merge", "builders"), line="history merge builders"),
    Verb("history", ("merge", "builders"), {"key": "good"}, line="history merge builders --key good"),
    Verb("dead_letters", ("merge",), line="dlq list merge"),
    Verb("dead_letter_reasons", ("merge",), line="dlq list merge --reasons"),
    Verb("scheduled", ("merge",), line="scheduled list merge"),
    Verb("schedules", line="schedule list"),
)
CHANGES = (
    Verb(
        "redrive",
        ("merge", "builders"),
        {"all": True},
        line="dlq redrive merge builders --all --execute",
        writes=(STATE, MESSAGES, HEADS),
    ),
    Verb(
        "delete_dead_letters",
        ("merge", "builders"),
        {"all": True},
        line="dlq delete merge builders --all --execute",
        writes=(STATE,),
    ),
    Verb(
        "seek",
        ("merge", "builders"),
        {"to": "earliest"},
        line="seek merge builders --to earliest --execute",
        writes=(LEASES, STATE, OFFSETS),
    ),
    Verb("pause", ("merge", "builders"), line="pause merge builders", writes=(GROUPS,)),
    Verb("pause", ("merge", "builders"), {"key": "good"}, "pause merge builders --key good", (GROUPS, OFFSETS)),
    Verb("resume", ("halted", "builders"), line="resume halted builders", writes=(GROUPS,)),
    Verb("resume", ("merge", "builders"), {"key": "paused"}, "resume merge builders --key paused", (GROUPS, OFFSETS)),
    Verb(
        "skip",
        ("merge", "builders", "good", 2),
        {"reason": "x"},
        line="skip merge builders good 2 --reason x --execute",
        writes=(LEASES, STATE, OFFSETS),
    ),
    Verb(
        "release",
        ("merge", "builders", "good"),
        line="release merge builders good --execute",
        writes=(LEASES, STATE, OFFSETS),
    ),
    Verb(
        "delete_group",
        ("merge", "builders"),
        line="delete-group merge builders --execute",
        writes=(HEADS, GROUPS, LEASES, STATE, OFFSETS, HEARTBEATS),
    ),
    Verb(
        "purge",
        ("merge",),
        {"before": 3},
        line="purge merge --before-offset 3 --execute",
        writes=(LEASES, STATE, OFFSETS, MESSAGES),
    ),
    Verb(
        "delete_topic",
        ("over",),
        line="delete-topic over --execute",
        writes=(HEADS, GROUPS, LEASES, STATE, OFFSETS, MESSAGES, HEARTBEATS, SCHEDULED),
    ),
    Verb(
        "cancel_scheduled",
        ("merge", "good", "later"),
        line="scheduled cancel merge good later --execute",
        writes=(SCHEDULED,),
    ),
    Verb("pause_schedule", ("nightly",), line="schedule pause nightly", writes=(SCHEDULES,)),
    Verb("resume_schedule", ("weekly",), line="schedule resume weekly", writes=(SCHEDULES,)),
    Verb("remove_schedule", ("nightly",), line="schedule remove nightly --execute", writes=(SCHEDULES,)),
    Verb("maintain", (), {"topics": ["over"]}, line="maintain over --once", writes=(MESSAGES, OFFSETS)),
)
NO_DATABASE = {"preview_schedule"}
FINDINGS = {"doctor"}
"""It says what is missing as a finding, see test_cli_doctor."""


def test_every_verb_is_here() -> None:
    """A method of administration that is in neither list would be untested."""
    public = {name for name in dir(Admin) if not name.startswith("_")}
    assert {verb.method for verb in (*LOOKS, *CHANGES)} == public - NO_DATABASE - FINDINGS


@pytest.fixture(scope="module")
def shop(lanelog_server: DevServer) -> Iterator[str]:
    """A database that nobody changes. Topic merge: a dead letter, a lane paused, and one whose handler is running."""
    url = lanelog_server.create_database(f"denied_{secrets.token_hex(4)}")
    running, over = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.key == "bad":
            raise Reject("no such branch")
        if message.key == "fails":
            raise Retry(delay=3600)
        if message.key == "good" and message.offset == 2:
            running.set()
            over.wait(60)

    with lanelog.connect(url) as client:
        client.migrate()
        client.publish_many("merge", [(key, b"1") for key in ("good", "bad", "paused", "fails", "good", "good")])
        client.publish("halted", "good", b"1")
        client.publish("merge", "good", b"later", id="later", delay=timedelta(days=1).total_seconds())
        for name in ("nightly", "weekly"):
            client.schedule(name, "0 3 29 2 *", "merge", "good", b"")  # not while these tests run
        with client.subscribe(["halted"], "builders", handle):
            pass
        client.publish_many("over", [("k", b"1")] * 3)
        with client.subscribe("over", "builders", handle, retention=0) as subscription:
            eventually(lambda: subscription.stats().acked == 3)
        client.admin.pause("halted", "builders", by="ann")
        client.admin.pause_schedule("weekly")
        with client.subscribe("merge", "builders", handle, history=True) as subscription:
            assert running.wait(20)
            eventually(lambda: subscription.stats().dead_lettered == subscription.stats().retried == 1)
            eventually(lambda: subscription.stats().acked == 2)
            client.admin.pause("merge", "builders", key="paused", by="ann", reason="looking")
            copy = _as_it_runs(url)
            over.set()
    with closing(_connect(url)) as connection:
        _put_back(connection, copy)
    yield url
    lanelog_server.drop_database(ConnectConfig.from_url(url).database)


def _as_it_runs(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with closing(_connect(url)) as connection:
        wanted = (LEASES, OFFSETS, STATE, HEARTBEATS)
        return {table: rows(connection, f"SELECT * FROM {table}") for table in wanted}


def _put_back(connection: Any, copy: dict[str, list[tuple[Any, ...]]]) -> None:
    """The worker that was running, without it: its heartbeat says that it lives, and no lock can say otherwise."""
    for table, found in copy.items():
        rows(connection, f"DELETE FROM {table}")
        for row in found:
            rows(connection, f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", *row)
    rows(connection, f"UPDATE {HEARTBEATS} SET liveness_lock = '', expires_at = expires_at + 86400000")
    # What a collection has released in topic over is still there to be deleted, and a drained floor to be raised.
    rows(
        connection,
        f"UPDATE {OFFSETS} SET offset_acked = 0, marked_through = 0 WHERE consumer_group = '' AND topic = 'over'",
    )


@pytest.fixture(scope="module")
def root(shop: str) -> Iterator[Any]:
    """A connection past the library."""
    with closing(_connect(shop)) as connection:
        yield connection


def _connect(url: str) -> Any:
    config = ConnectConfig.from_url(url)
    names = ("host", "port", "unix_socket", "user", "password", "database")
    return pymysql.connect(**{name: getattr(config, name) for name in names}, autocommit=True)


@pytest.fixture(scope="module")
def accounts(shop: str, root: Any) -> Iterator[dict[str, str]]:
    """URLs of accounts: `nobody` sees that there are tables, and each table's own may write all but that table."""
    config = ConnectConfig.from_url(shop)
    mark = secrets.token_hex(4)
    tables = [table for (table,) in rows(root, "SHOW TABLES")]
    written = sorted({table for verb in CHANGES for table in verb.writes})
    names = {table: f"no{number}_{mark}" for number, table in enumerate(["nobody", *written])}
    for table, name in names.items():
        rows(root, f"CREATE USER '{name}'@'%%' IDENTIFIED BY %s", PASSWORD)
        what = "INSERT" if table == "nobody" else "SELECT"
        rows(root, f"GRANT {what} ON `{config.database}`.* TO '{name}'@'%'")
        for other in tables if table != "nobody" else ():
            if other != table:
                rows(root, f"GRANT {WRITES} ON `{config.database}`.{other} TO '{name}'@'%'")
    socket = f"?unix_socket={config.unix_socket}" if config.unix_socket else ""
    yield {
        table: f"mysql://{name}:{PASSWORD}@{config.host}:{config.port}/{config.database}{socket}"
        for table, name in names.items()
    }
    for name in names.values():
        rows(root, f"DROP USER '{name}'@'%'")


def refused(url: str, verb: Verb) -> str:
    """What administration says instead of doing it."""
    with lanelog.connect(url) as client, pytest.raises(DatabaseError) as raised:
        getattr(client.admin, verb.method)(*verb.args, **verb.options)
    assert not raised.value.retriable
    return str(raised.value)


def assert_clear(text: str) -> None:
    """One line that says what is missing, and shows no password."""
    assert "denied" in text
    assert len(text.splitlines()) == 1
    assert PASSWORD not in text


@pytest.mark.parametrize("verb", LOOKS, ids=str)
def test_who_may_not_look_is_told_so(accounts: dict[str, str], verb: Verb) -> None:
    """In Python by an exception that is not worth a repetition, in a terminal by one line and exit status 2."""
    assert_clear(refused(accounts["nobody"], verb))
    if verb.line:
        assert_clear(Command(accounts["nobody"]).refused(*shlex.split(verb.line)))


@pytest.mark.parametrize(
    ("verb", "table"), [pytest.param(verb, table, id=f"{verb}-{table}") for verb in CHANGES for table in verb.writes]
)
def test_who_may_not_write_changes_nothing(
    accounts: dict[str, str], shop: str, root: Any, verb: Verb, table: str
) -> None:
    """Whichever of the tables it is that the verb writes: the first step, too, is not taken or is taken back."""
    before = everything(root)
    text = refused(accounts[table], verb)
    assert_clear(text)
    assert table in text
    assert everything(root) == before
    assert_clear(Command(accounts[table]).refused(*shlex.split(verb.line)))
    assert everything(root) == before
