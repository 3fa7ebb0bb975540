"""The verbs for recurring messages, on a real database."""

import json
import re
from typing import Any

import pytest

from lanelog import Client
from lanelog._client.announcements import ClientAnnouncements
from support.cli import Command, everything
from support.sql import rows


@pytest.fixture
def command(lanelog_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`lanelog` on the test's database, where no loop fires meanwhile."""
    monkeypatch.setattr(ClientAnnouncements, "scheduled", lambda _announcements, **_: None)
    return Command(lanelog_url)


ADD = ("schedule", "add", "nightly", "30 2 * * *", "reports", "daily", "go")


@pytest.mark.thorough
def test_from_declaring_to_removing(command: Command, raw: Any) -> None:
    """Declared, declared again, listed, paused and resumed at once; removed only with --execute."""
    told = command(*ADD, "--timezone", "Europe/Berlin", "--metadata", "by=ann", "--ttl", "60").stdout
    assert told.startswith("declared nightly: 30 2 * * * in Europe/Berlin, next at 20")
    (info,) = command.json("schedule", "list")
    assert (info["name"], info["payload"], info["metadata"], info["ttl"]) == ("nightly", "go", {"by": "ann"}, 60.0)
    assert json.loads(command(*ADD, "--json").stdout)["timezone"] == "UTC"
    lines = command("schedule", "list").stdout.splitlines()
    assert " ".join(lines[0].split()) == "NAME EXPRESSION TIMEZONE TOPIC KEY CATCH-UP FIRED LAST NEXT PAUSED BY REASON"
    assert re.search(
        r"nightly  30 2 \* \* \*  UTC       reports  daily  latest        0     -  in \d+[hms]  ", lines[1]
    )

    before = everything(raw)
    assert command("schedule", "pause", "nightly", "--dry-run").stdout.startswith(
        "would pause nightly: next would be 20"
    )
    assert everything(raw) == before
    command("schedule", "pause", "nightly", "--by", "ann", "--why", "deploy")
    assert command("schedule", "pause", "nightly").stdout.rstrip().endswith("by ann")
    assert command("schedule", "list").stdout.rstrip().endswith("ago  ann  deploy")
    assert command(*ADD).stdout.rstrip().endswith("paused")
    assert command("schedule", "resume", "nightly").stdout.startswith("resumed nightly: next at 20")
    assert command("schedule", "resume", "nightly").stdout.startswith("nightly runs already: next at 20")

    before = everything(raw)
    told = command("schedule", "run", "nightly", "--dry-run").stdout
    assert re.fullmatch(r"would publish one message of nightly to reports, lane daily; next at .*, as before\n", told)
    assert everything(raw) == before
    line = ("schedule", "run", "nightly", "--token", "again", "--why", "the report was wrong")
    assert "reports, lane daily: offset 1, id nightly@run-again; next at 20" in command(*line).stdout
    assert command(*line).stdout.startswith("a message with this token was published already, at offset 1 of reports")
    assert re.search(r" id nightly@run-[0-9a-f]{16}; ", command("schedule", "run", "nightly").stdout)
    assert [each["reason"] for each in command.json("audit") if each["verb"] == "run_schedule"] == ["", line[-1]]

    before = everything(raw)
    told = command("schedule", "remove", "nightly")
    assert told.stdout == "would remove nightly, which published 2 messages to reports, lane daily\n"
    assert "--execute" in told.stderr
    assert everything(raw) == before
    assert command("schedule", "remove", "nightly", "--execute").stdout.startswith("removed nightly")
    assert command.json("schedule", "list") == []


def test_a_preview_across_both_changes_of_the_clock(command: Command, raw: Any) -> None:
    """In the zone and in UTC; nothing is declared."""
    where = ("--timezone", "Europe/Berlin", "--count", "3", "--after")
    assert command("schedule", "preview", "30 2 * * *", *where, "2027-03-27T00:00:00Z").stdout == (
        "TIME                       DAY  UTC\n"
        "2027-03-27T02:30:00+01:00  Sat  2027-03-27T01:30:00Z\n"
        "2027-03-28T03:00:00+02:00  Sun  2027-03-28T01:00:00Z\n"
        "2027-03-29T02:30:00+02:00  Mon  2027-03-29T00:30:00Z\n"
    )
    shown = command.json("schedule", "preview", "30 2 * * *", *where, "2027-10-30T00:00:00Z")
    assert shown == ["2027-10-30T02:30:00+02:00", "2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"]
    assert len(command("schedule", "preview", "* * * * * *").stdout.splitlines()) == 11
    assert rows(raw, "SELECT * FROM queue_schedules") == []


def test_a_deleted_topic_names_the_schedules_that_make_it_anew(
    command: Command, lanelog_client: Client, raw: Any
) -> None:
    """All of them, paused or not, and nobody else's; before it is deleted and when it is, to programs and to people."""
    for name, topic in (("z", "reports"), ("a b", "reports"), ("m", "reports_dlq"), ("n", "other")):
        lanelog_client.schedule(name, "30 2 * * *", topic, "daily", b"x" * 1000)
    lanelog_client.admin.pause_schedule("z")
    for topic in ("reports", "other"):
        lanelog_client.publish(topic, "daily", b"x")
    before = rows(raw, "SELECT * FROM queue_schedules")
    assert lanelog_client.admin.delete_topic("reports", dry_run=True).schedules == ("a b", "z")
    named = [
        "a schedule publishes to it and makes it anew: lanelog schedule remove 'a b'",
        "a schedule publishes to it and makes it anew: lanelog schedule remove z",
    ]
    assert command("delete-topic", "reports").stdout.splitlines()[1:] == named
    assert command.json("delete-topic", "reports")["schedules"] == ["a b", "z"]
    assert command("delete-topic", "reports", "--execute").stdout.splitlines()[1:] == named
    assert rows(raw, "SELECT * FROM queue_schedules") == before
    lanelog_client.admin.remove_schedule("n")
    assert lanelog_client.admin.delete_topic("other", dry_run=False).schedules == ()
