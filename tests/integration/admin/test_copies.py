"""A copy of the tables on another server, and what an online rebuild leaves: both are named, nobody is disturbed."""

import logging
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

import lanelog
from lanelog import Client, SchemaError
from lanelog._hints.host import own_host
from lanelog.admin import Finding
from lanelog.devserver import DevServer
from support.cli import TABLES
from support.situations import Situations
from support.sql import connect as sql_connection
from support.sql import rows
from support.waiting import accept, events, eventually

NAMES = [name for name in TABLES if name != "queue_schema"]


@pytest.fixture
def copy(lanelog_client: Client, private_server: DevServer, raw: Any) -> Iterator[Client]:
    """A client of another server, to which the tables were copied while a subscription ran on this one."""
    lanelog_client.publish("t", "k", b"x")
    with lanelog_client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: subscription.stats().acked == 1)
        with lanelog.connect(private_server.url) as client, closing(sql_connection(private_server.url)) as other:
            client.migrate()
            for table in NAMES:
                for row in rows(raw, f"SELECT * FROM {table}"):
                    rows(other, f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", *row)
            rows(other, "UPDATE queue_subscriber_heartbeats SET expires_at = expires_at + 3600000")  # a slow test
            yield client


def finding(client: Client, check: str) -> Finding:
    """What the doctor finds of one check."""
    (found,) = (each for each in client.admin.doctor() if each.check == check)
    return found


origin = partial(finding, check="origin")
replication = partial(finding, check="replication")
hints = partial(finding, check="hints")
triggers = partial(finding, check="triggers")


@pytest.mark.thorough
@pytest.mark.skipif(not own_host(), reason="hints need Linux")
def test_no_hint_leaves_a_copy_for_the_processes_of_the_original(
    copy: Client, lanelog_client: Client, private_server: DevServer
) -> None:
    """The copy has the original's rows of members, alive by its clock. Publisher and doctor reach its own one alone."""
    sender = copy._announcements.hints
    original = lanelog_client._engine.context.receiver
    with lanelog.connect(private_server.url) as member, member.subscribe("t", "g", accept):

        def hinted() -> bool:
            copy.publish("t", "k", b"x")
            return sender.sent > 0 and member._engine.context.receiver.received > 0

        eventually(hinted)
        assert (original.received, original.ignored, sender.lost) == (0, 0, 0)
        assert "1 that another server wrote are sent none" in hints(copy).detail
    assert (original.received, original.ignored) == (0, 0)


def test_a_copy_is_named_until_it_has_a_member_of_its_own(
    copy: Client, lanelog_client: Client, private_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By the doctor, and by the first subscription; not by the original's doctor, and not once a member is there."""
    caplog.set_level(logging.WARNING, "lanelog")
    assert origin(lanelog_client).status == "ok"
    found = origin(copy)
    assert (found.status, found.detail[:32]) == ("warning", "another server wrote 1 heartbeat")
    assert "if the primary has changed, start members here; if this is a copy, " in found.remedy
    assert replication(copy).status == "ok"
    assert copy.admin.status().problems[0].what == "another server"
    with copy.subscribe("t", "g", accept):
        eventually(lambda: events(caplog, "tables.of_another_server"))
        eventually(lambda: origin(copy).status == "ok")
    assert origin(copy).detail == "this server wrote 1 heartbeat; 1 older ones by another"
    with lanelog.connect(private_server.url) as second, second.subscribe("t", "g", accept):
        eventually(lambda: second.health().ready)
    assert len(events(caplog, "tables.of_another_server")) == 1


@pytest.mark.parametrize("aside", [False, True], ids=["stopped", "aside"])
def test_doctor_and_status_agree_on_who_wrote_last(
    lanelog_client: Client, made: Situations, raw: Any, aside: bool
) -> None:
    """A member here that has stopped, or lives and stands aside, is newer than a dead one of the old primary."""
    made.owner("there", expires=-5, incarnation="0" * 64)
    with lanelog_client.subscribe("t", "g", accept) as subscription:
        eventually(lambda: lanelog_client.health().ready)
    if aside:
        sql = "UPDATE queue_subscriber_heartbeats SET deregistered_at = heartbeat_at WHERE subscriber_name = %s"
        rows(raw, sql, subscription.owner)
    assert (origin(lanelog_client).status, replication(lanelog_client).status) == ("ok", "ok")
    assert lanelog_client.admin.status().members_known


def test_a_trigger_that_an_online_rebuild_left_is_named(lanelog_client: Client, raw: Any) -> None:
    """The SchemaError names the trigger, because `lanelog migrate` cannot repair this; the doctor lists triggers."""
    lanelog_client.publish("t", "k", b"x")
    copy = "REPLACE INTO _queue_messages_new (topic) VALUES (NEW.topic)"
    rows(raw, f"CREATE TRIGGER pt_osc_ins AFTER INSERT ON queue_messages FOR EACH ROW {copy}")
    with pytest.raises(SchemaError, match="_queue_messages_new") as failed:
        lanelog_client.publish("t", "k", b"x")
    assert "a trigger on lanelog's tables" in str(failed.value)
    assert "migrate" not in str(failed.value)
    found = triggers(lanelog_client)
    assert found.status == "warning"
    assert "pt_osc_ins (AFTER INSERT on queue_messages)" in found.detail
    rows(raw, "DROP TRIGGER pt_osc_ins")
    lanelog_client.publish("t", "k", b"x")
    found = triggers(lanelog_client)
    assert (found.status, found.detail) == ("ok", "none that this account may see")
