"""`lanelog doctor` on a real server: what it finds, and that it changes nothing."""

import threading
from contextlib import closing
from typing import Any

import pytest

import lanelog
from lanelog.admin import Finding
from lanelog.admin.doctor import clock, doctor, locks
from lanelog.migrations import VERSION
from support.accounts import PASSWORD, account
from support.cli import Command, everything
from support.old_tables import set_back
from support.sql import rows

CHECKS = [
    *("reachable", "version", "replication", "schema", "privileges", "session settings", "isolation", "packet size"),
    *("durability", "clock", "oldest transaction", "session locks", "row locks", "hints", "origin", "triggers"),
    "contradictions",
]


def finding(client: lanelog.Client, check: str) -> Finding:
    """What it finds of one check."""
    (found,) = (each for each in client.admin.doctor() if each.check == check)
    return found


def test_a_healthy_server(command: Command, lanelog_client: lanelog.Client, raw: Any) -> None:
    """Every check is listed; none is an error, none changes a row; remedies are for what is not ok."""
    lanelog_client.publish("merge", "k", b"1")
    before = everything(raw)
    found = lanelog_client.admin.doctor()
    assert [each.check for each in found] == CHECKS
    assert [each.check for each in found if each.status == "error"] == []
    assert all(bool(each.remedy) is (each.status != "ok") for each in found)
    assert everything(raw) == before
    lines = command("doctor").stdout.splitlines()
    assert lines[0].split() == ["CHECK", "STATUS", "FINDING", "REMEDY"]
    assert len(lines) == 1 + len(CHECKS)
    assert [each["check"] for each in command.json("doctor")] == CHECKS


def test_what_the_account_may_do(lanelog_client: lanelog.Client, raw: Any, lanelog_url: str) -> None:
    """The roles that its privileges are enough for, tried by the server itself, and what the next one lacks."""
    detail = finding(lanelog_client, "privileges").detail
    assert detail == "enough for reader, publisher, consumer, janitor, dashboard, admin"
    with account(raw, lanelog_url, {"*": "INSERT"}) as url, lanelog.connect(url) as client:
        none = finding(client, "privileges")
    assert none.status == "error"
    assert "SELECT on queue_messages" in none.detail
    few = {"queue_partitions": "UPDATE", "queue_scheduled": "DELETE", "queue_schedules": "UPDATE"}
    with account(raw, lanelog_url, {"*": "SELECT, INSERT", **few}) as url, lanelog.connect(url) as client:
        some = finding(client, "privileges")
        assert finding(client, "oldest transaction").status == "warning"  # needs PROCESS
        assert PASSWORD not in Command(url)("doctor").output
    assert some.status == "ok"
    assert some.detail.startswith("enough for reader, publisher; consumer lacks UPDATE on queue_offsets, DELETE on")


def test_a_table_that_differs_is_an_error(command: Command, raw: Any) -> None:
    """The error shows the statement that repairs the table; the exit status is 1."""
    rows(raw, "ALTER TABLE queue_groups DROP COLUMN pause_reason")
    result = command("doctor", status=1)
    assert "ALTER TABLE queue_groups ADD COLUMN `pause_reason`" in result.stdout
    assert result.stderr == "1 error: schema\n"


def test_older_tables_are_a_warning(command: Command, lanelog_client: lanelog.Client, raw: Any) -> None:
    """Older tables are worked on, without newer features; the remedy is to migrate, and it works."""
    set_back(raw)
    found = finding(lanelog_client, "schema")
    assert (found.status, found.remedy.split(",")[0]) == ("warning", "run `lanelog migrate` as the owner")
    assert f"version 1: this lanelog knows version {VERSION}" in found.detail
    command("doctor")
    assert "added column queue_subscriber_heartbeats.incarnation" in command("migrate").stdout
    assert finding(lanelog_client, "schema").detail == f"version {VERSION}"


def test_newer_tables_are_fine_if_they_admit_this_lanelog(lanelog_client: lanelog.Client, raw: Any) -> None:
    """Else they are an error, whose remedy is to upgrade."""
    newer = VERSION + 1
    rows(raw, "INSERT INTO queue_schema (version, checksum, oldest_code) VALUES (%s, 'x', %s)", newer, VERSION)
    found = finding(lanelog_client, "schema")
    assert (found.status, found.detail) == ("ok", f"version {newer}, which admits this lanelog of version {VERSION}")
    rows(raw, "UPDATE queue_schema SET oldest_code = %s WHERE version = %s", newer, newer)
    found = finding(lanelog_client, "schema")
    assert (found.status, found.remedy) == ("error", "upgrade lanelog")


def test_a_missing_table_leaves_the_other_checks(lanelog_client: lanelog.Client, raw: Any) -> None:
    """Checks that read the missing table answer, too."""
    rows(raw, "DROP TABLE queue_subscriber_heartbeats")
    found = {each.check: each.status for each in lanelog_client.admin.doctor()}
    assert found.pop("schema") == "error"
    assert "error" not in found.values()


def test_lost_durability_is_a_warning(lanelog_client: lanelog.Client, setting: Any) -> None:
    """The warning has the setting that restores durability."""
    assert finding(lanelog_client, "durability").status == "ok"
    setting("innodb_flush_log_at_trx_commit", 2)
    found = finding(lanelog_client, "durability")
    assert (found.status, found.remedy) == ("warning", "set innodb_flush_log_at_trx_commit = 1")


def test_a_packet_below_the_largest_payload_is_a_warning(lanelog_url: str) -> None:
    """A payload doubles on the wire."""
    with lanelog.connect(lanelog_url, max_payload_bytes=500_000_000) as client:
        found = finding(client, "packet size")
    assert found.status == "warning"
    assert "a payload of max_payload_bytes (500000000) needs 1000065536" in found.detail


def test_a_server_that_takes_no_writes_is_an_error(lanelog_client: lanelog.Client, setting: Any) -> None:
    """A replica, or a primary after its failover."""
    setting("read_only", 1)
    found = finding(lanelog_client, "replication")
    assert (found.status, found.remedy) == ("error", "connect to the primary")


@pytest.mark.thorough
def test_an_old_transaction_is_named(lanelog_client: lanelog.Client, open_raw: Any) -> None:
    """By its connection, with the statement that ends it."""
    holder = open_raw()
    rows(holder, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    rows(holder, "SELECT * FROM queue_schema FOR UPDATE")
    assert finding(lanelog_client, "oldest transaction").status == "ok"
    threading.Event().wait(0.2)  # InnoDB makes a new copy of its list only when nobody has read the last one for 0.1 s
    findings = doctor.doctor(lanelog_client._database, old_after=-1)
    (found,) = (each for each in findings if each.check == "oldest transaction")
    assert found.status == "warning"
    assert found.remedy.endswith(f"then KILL {holder.thread_id()}")
    holder.rollback()


def test_a_clock_that_went_back_is_an_error(lanelog_client: lanelog.Client, raw: Any) -> None:
    """A heartbeat that the server's clock dated in what is now the future."""
    assert finding(lanelog_client, "clock").status == "ok"
    insert = "INSERT INTO queue_subscriber_heartbeats (consumer_group, topic, subscriber_name, heartbeat_at)"
    rows(raw, f"{insert} VALUES ('g', 't', 'o', (UNIX_TIMESTAMP() + 3600) * 1000)")
    found = finding(lanelog_client, "clock")
    assert found.status == "error"
    assert "behind a heartbeat that it dated itself, of member o of group g of topic t" in found.detail


def test_a_clock_that_is_off_is_a_warning(lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning says which clock is ahead, this machine's or the server's, and by how much."""
    real = clock.time.time
    monkeypatch.setattr(clock.time, "time", lambda: real() - 3600)
    found = finding(lanelog_client, "clock")
    assert found.status == "warning"
    assert "s ahead of this machine's" in found.detail


@pytest.mark.parametrize("answer", [(0, 7), (1, 8), None])
def test_locks_that_cannot_be_trusted_are_an_error(
    lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """A proxy that changes the session between two statements: the lock is somebody else's, or nobody's."""
    monkeypatch.setattr(locks, "_pair", lambda _row: answer or (None, None))
    found = finding(lanelog_client, "session locks")
    assert found.status == "error"
    assert "expiry" in found.detail


def test_who_may_lock_no_row_of_the_tables_version_tries_none(
    lanelog_client: lanelog.Client, raw: Any, lanelog_url: str
) -> None:
    """The check of row locks is no error for an account that only reads; the owner's says what was tried."""
    assert finding(lanelog_client, "row locks").detail == "a row that one session locked is skipped by another"
    with account(raw, lanelog_url, {"*": "SELECT"}) as url, lanelog.connect(url) as client:
        assert finding(client, "row locks").status == "ok"
    rows(raw, "DELETE FROM queue_schema")
    assert finding(lanelog_client, "row locks").detail == "not tried"


def test_no_server_is_the_only_finding() -> None:
    """From Python it is a finding, on the command line a refusal."""
    url = "mysql://root:s3cret@127.0.0.1:1/jobs"
    with closing(lanelog.connect(url)) as client:
        (found,) = client.admin.doctor()
    assert (found.check, found.status) == ("reachable", "error")
    assert "s3cret" not in repr(found) + Command(url).refused("doctor")
