"""What administration and retention delete, or let groups pass: one event with who, what, how many and why."""

import os
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from lanelog import Client, DatabaseError
from lanelog._log import end_groups
from lanelog.admin import Admin
from lanelog.config import ConnectConfig
from support.commits import every_commit_unanswered_once
from support.dead_letters import give_up
from support.situations import settle
from support.sql import rows
from support.waiting import events, raising

Verb = Callable[[Admin, bool], Any]
VERBS: dict[str, tuple[Verb, str, str]] = {
    "purge": (
        lambda admin, dry: admin.purge("t", before=4, dry_run=dry),
        "messages.deleted",
        "verb=purge topic=t why='before offset 4' messages=3 unsettled=2 scheduled=0",
    ),
    "delete_topic": (
        lambda admin, dry: admin.delete_topic("t", dry_run=dry),
        "messages.deleted",
        'verb=delete_topic topic=t why="an operator\'s decision" messages=5 unsettled=4 scheduled=1',
    ),
    "delete_group": (
        lambda admin, dry: admin.delete_group("t", "g", dry_run=dry),
        "messages.passed",
        'verb=delete_group topic=t group=g why="an operator\'s decision" messages=4 unsettled=4 scheduled=0',
    ),
    "seek": (
        lambda admin, dry: admin.seek("t", "g", key="k", to="latest", dry_run=dry),
        "messages.passed",
        "verb=seek topic=t group=g key=k why='to latest' messages=4 unsettled=4 scheduled=0",
    ),
    "skip": (
        lambda admin, dry: admin.skip("t", "g", "k", 3, reason="it hangs", dry_run=dry),
        "messages.passed",
        "verb=skip topic=t group=g key=k why='it hangs' messages=1 unsettled=1 scheduled=0",
    ),
}


@pytest.fixture
def who(lanelog_url: str) -> str:
    """This process, as events name it."""
    return f"account={ConnectConfig.from_url(lanelog_url).user} host={socket.gethostname()} pid={os.getpid()}"


@pytest.fixture
def admin(lanelog_client: Client) -> Admin:
    """Topic t: five messages in lane k, of which group g has settled the first, and one that is not due yet."""
    lanelog_client.publish("t", "k", b"x")
    settle(lanelog_client, 1)
    lanelog_client.publish_many("t", [("k", b"x")] * 4)
    lanelog_client.publish("t", "k", b"x", delay=3600)
    return lanelog_client.admin


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for name in ("messages.deleted", "messages.passed") for line in events(caplog, name)]


@pytest.mark.parametrize("name", VERBS)
def test_a_command_reports_what_it_did_and_a_preview_nothing(
    admin: Admin, caplog: pytest.LogCaptureFixture, who: str, name: str
) -> None:
    """One event for the call has the account, the machine and the process; a call that deletes nothing has none."""
    verb, event, says = VERBS[name]
    verb(admin, True)
    assert told(caplog) == []
    verb(admin, False)
    assert told(caplog) == [f"{event} {says} {who}"]
    if name not in ("delete_group", "delete_topic"):  # which refuse what is not there
        verb(admin, False)
        assert len(told(caplog)) == 1


def test_a_seek_to_what_was_settled_passes_nothing(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    """The seek delivers again, which loses nothing."""
    assert admin.seek("t", "g", to="earliest", dry_run=False).again == 1
    assert told(caplog) == []


def test_the_deletion_of_dead_letters_is_logged(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    """By their group, with the choice; a redrive deletes nothing."""
    give_up(lanelog_client, raw, [("a", "no cart"), ("a", "no stock"), ("b", "no carrier")], group="g")
    admin = lanelog_client.admin
    for dry_run in (True, False):
        admin.redrive("t", "g", reason=admin.dead_letters("t", "g")[0].reason, dry_run=dry_run)
        admin.delete_dead_letters("t", "g", all=True, dry_run=dry_run)
    left = "verb=delete_dead_letters topic=t group=g why=all messages=2 unsettled=0 scheduled=0"
    assert told(caplog) == [f"messages.deleted {left} {who}"]


def test_retention_logs_the_dead_letters_that_it_deletes(
    lanelog_client: Client, raw: Any, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    """One event for the topic has their number; those that an operator had settled were logged before."""
    caplog.set_level("INFO")
    give_up(lanelog_client, raw, [("a", "1"), ("a", "2"), ("b", "3"), ("c", "4")], group="g", dead_letter_retention=600)
    others = "topic = 't_dlq' AND partition_key <> 'c'"
    rows(raw, f"UPDATE queue_messages SET created_at = created_at - 700000 WHERE {others}")
    admin = lanelog_client.admin
    admin.delete_dead_letters("t", "g", ids=[admin.dead_letters("t", "g")[0].id], dry_run=False)
    assert admin.maintain(topics=["t_dlq"]).dead_letters == 3
    (line,) = events(caplog, "dead_letters.deleted")
    assert line == f"dead_letters.deleted topic=t_dlq messages=2 why=dead_letter_retention {who}"
    admin.maintain(topics=["t_dlq"])
    assert len(events(caplog, "dead_letters.deleted")) == 1


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("name", ["skip", "seek", "purge"])
def test_what_an_unanswered_commit_did_is_logged_once(
    admin: Admin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str, committed: bool
) -> None:
    """The repetition finds it done, or does it: the event is the same."""
    verb, event, says = VERBS[name]
    with every_commit_unanswered_once(monkeypatch, committed=committed):
        verb(admin, False)
    (line,) = told(caplog)
    assert line.startswith(f"{event} {says} ")


def test_a_call_that_fails_in_its_middle_logs_what_it_had_done(
    admin: Admin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups are gone, though their rows and the messages are not: the event has the error."""
    monkeypatch.setattr(end_groups, "clear", raising(DatabaseError, "no privilege"))
    with pytest.raises(DatabaseError):
        admin.delete_topic("t", dry_run=False)
    (line,) = told(caplog)
    assert re.search(r"error='?DatabaseError: no privilege'? verb=delete_topic .* messages=0 unsettled=4", line)
