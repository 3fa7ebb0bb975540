"""A database in which every verb of administration has something to do, and the verbs with the tables they write."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from attrs import field, frozen

import lanelog
from lanelog import Message, Reject, Retry
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.sql import connect, rows
from support.waiting import eventually

LEASES, STATE, OFFSETS = "queue_partition_leases", "queue_delivery_state", "queue_offsets"
GROUPS, HEADS, MESSAGES = "queue_groups", "queue_partitions", "queue_messages"
SCHEDULED, SCHEDULES = "queue_scheduled", "queue_schedules"
HEARTBEATS, AUDIT = "queue_subscriber_heartbeats", "queue_audit"
A_LANE = (LEASES, STATE, OFFSETS, AUDIT)
"""What is written of a lane that is taken away from its owner."""
A_GROUP = (HEADS, GROUPS, HEARTBEATS, *A_LANE)
BUILDERS, GOOD = ("merge", "builders"), ("merge", "builders", "good")
DONE: dict[str, Any] = {"dry_run": False}
ALL = {"all": True, **DONE}


@frozen
class Verb:
    """A way to call a method of administration, how a terminal says the same, and the tables that it writes."""

    method: str
    """Empty: only the command line has it."""
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(factory=dict)
    line: str = ""
    """Empty: the command line has no such verb of its own."""
    writes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join(
            [self.method or self.line, *(str(value) for value in self.options.values() if value is not True)]
        )


LOOKS = (
    Verb("topics", line="topics"),
    Verb("contradictions"),
    Verb("topic", ("merge",)),
    Verb("heads", ("merge",)),
    Verb("now"),
    Verb("open_lanes", ("merge",), line="open-lanes merge"),
    Verb("topic_names"),
    Verb("group_names", ("merge",)),
    Verb("key_names", ("merge",)),
    Verb("groups", line="groups"),
    Verb("groups", ("merge",), line="groups merge"),
    Verb("members", BUILDERS, line="members merge builders"),
    Verb("members", line="members --stacks"),
    Verb("lanes", BUILDERS, line="lanes merge builders"),
    Verb("lanes", BUILDERS, {"order_by": "lag"}, line="lanes merge builders --by lag"),
    Verb("lanes", BUILDERS, {"order_by": "key"}, line="lanes merge builders --by key"),
    Verb("lane", GOOD),
    Verb("offsets", ("merge",), line="offsets merge"),
    Verb("leases", line="leases"),
    Verb("leases", (), {"stale": True}, line="leases --stale"),
    Verb("message", ("merge", "good"), {"offset": 1}, line="show merge good 1"),
    Verb("messages", ("merge", "good"), line="show merge good"),
    Verb("keys_of", ("merge", "x")),
    Verb("history", BUILDERS, line="history merge builders"),
    Verb("history", BUILDERS, {"key": "good"}, line="history merge builders --key good"),
    Verb("dead_letters", ("merge",), line="dlq list merge"),
    Verb("dead_letter_reasons", ("merge",)),
    Verb("dead_letter_page", ("merge",), {"reason": "r-4f2a"}, line="dlq list merge --reason r-4f2a"),
    Verb("count_dead_letters", ("merge",), line="dlq list merge --reasons"),
    Verb("scheduled", ("merge",), line="scheduled list merge"),
    Verb("scheduled_counts"),
    Verb("schedules", line="schedule list"),
    Verb("status", line="status"),
    Verb("figures"),
    Verb("server"),
    Verb("audit", line="audit"),
    Verb("audit", ("merge",), line="audit merge"),
    Verb("lag", line="lag"),
    Verb("lag", BUILDERS, line="lag merge builders"),
    Verb("", line="lag mer* build*"),
    Verb("", line="lag merge builders --sql"),
    Verb("tail", ("merge", "good"), line="tail merge good"),
    Verb("tail", ("merge",), line="tail merge"),
    Verb("", line="dlq show merge bad {letter}"),
)
CHANGES = (
    Verb("", line="publish merge good x", writes=(MESSAGES, HEADS)),
    Verb("", line="publish merge good", writes=(MESSAGES, HEADS)),  # lines of standard input
    Verb("", line="publish merge new x", writes=(HEADS,)),
    Verb("redrive", BUILDERS, ALL, "dlq redrive merge builders --all --execute", (STATE, MESSAGES, HEADS, AUDIT)),
    Verb("delete_dead_letters", BUILDERS, ALL, "dlq delete merge builders --all --execute", (STATE, AUDIT)),
    Verb("retry", (*BUILDERS, "fails"), DONE, "retry merge builders fails --execute", A_LANE),
    Verb("seek", BUILDERS, {"to": "earliest", **DONE}, "seek merge builders --to earliest --execute", A_LANE),
    Verb("set_open_lanes", ("merge", 32), line="open-lanes merge 32", writes=(HEADS, AUDIT)),
    Verb("pause", BUILDERS, line="pause merge builders", writes=(GROUPS, AUDIT)),
    Verb("pause", BUILDERS, {"key": "good"}, "pause merge builders --key good", (GROUPS, OFFSETS, AUDIT)),
    Verb("resume", ("halted", "builders"), line="resume halted builders", writes=(GROUPS, AUDIT)),
    Verb("resume", BUILDERS, {"key": "paused"}, "resume merge builders --key paused", (GROUPS, OFFSETS, AUDIT)),
    Verb("skip", (*GOOD, 2), {"reason": "x", **DONE}, "skip merge builders good 2 --why x --execute", A_LANE),
    Verb("release", GOOD, DONE, "release merge builders good --execute", A_LANE),
    Verb("delete_group", BUILDERS, {"evict": True, **DONE}, "delete-group merge builders --evict --execute", A_GROUP),
    Verb("purge", ("merge",), {"before": 3, **DONE}, "purge merge --before-offset 3 --execute", (MESSAGES, *A_LANE)),
    Verb("delete_topic", ("over",), DONE, "delete-topic over --execute", (MESSAGES, SCHEDULED, *A_GROUP)),
    Verb(
        "cancel_scheduled",
        ("merge", "good", "later"),
        line="scheduled cancel merge good later --execute",
        writes=(SCHEDULED, AUDIT),
    ),
    Verb("pause_schedule", ("nightly",), line="schedule pause nightly", writes=(SCHEDULES, AUDIT)),
    Verb("run_schedule", ("nightly",), line="schedule run nightly", writes=(MESSAGES, HEADS, SCHEDULES, AUDIT)),
    Verb("resume_schedule", ("weekly",), line="schedule resume weekly", writes=(SCHEDULES, AUDIT)),
    Verb("remove_schedule", ("nightly",), line="schedule remove nightly --execute", writes=(SCHEDULES, AUDIT)),
    Verb("maintain", (), {"topics": ["over"]}, line="maintain over --once", writes=(MESSAGES, OFFSETS)),
)
DECIDED = {verb.method: verb for verb in CHANGES if "dry_run" in verb.options}
"""What destroys or delivers again, by its name in Python, where the caller must say whether it is to be done."""

LINES = [verb.line for verb in (*LOOKS, *CHANGES) if verb.line]


@contextmanager
def open_shop(server: DevServer) -> Iterator[str]:
    """URL of a database that nobody changes. Topic merge: a dead letter, a lane paused, and one that is worked on.

    Group builders has left topic over, where there is something to collect; is paused in halted; never was in other.
    """
    url = server.create_database(f"shop_{secrets.token_hex(4)}")
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
        client.publish("other", "good", b"1")
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
            with connect(url) as connection:
                copy = {
                    table: rows(connection, f"SELECT * FROM {table}") for table in (LEASES, OFFSETS, STATE, HEARTBEATS)
                }
            over.set()
    with connect(url) as connection:
        _put_back(connection, copy)
    yield url
    server.drop_database(ConnectConfig.from_url(url).database)


def _put_back(connection: Any, copy: dict[str, list[tuple[Any, ...]]]) -> None:
    """The worker that was running, without it: its heartbeat says that it lives, and no lock can say otherwise."""
    for table, found in copy.items():
        rows(connection, f"DELETE FROM {table}")
        for row in found:
            rows(connection, f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", *row)
    rows(connection, f"UPDATE {HEARTBEATS} SET liveness_lock = '', expires_at = expires_at + 86400000")
    # What a collection has released in topic over is still there to be deleted, and a drained floor to be raised.
    released = f"{OFFSETS} SET offset_acked = 0, marked_through = 0"
    rows(connection, f"UPDATE {released} WHERE consumer_group = '' AND topic = 'over'")
