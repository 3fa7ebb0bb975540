"""The audit: who changed what with the verbs of administration, in the transaction that did it."""

from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError, DatabaseError
from lanelog._stores import audit
from lanelog.devserver import DevServer
from support.accounts import account
from support.cli import Command, everything
from support.commits import every_commit_unanswered_once
from support.old_tables import set_back
from support.shop import CHANGES, open_shop
from support.situations import settle
from support.sql import connect, one, rows

AUDITED = [verb for verb in CHANGES if "queue_audit" in verb.writes]
OLD = "UPDATE queue_audit SET acted_at = acted_at - %s"


def acted(client: Client) -> list[tuple[Any, ...]]:
    """Verb, group, key, choice and messages of each entry, the first first."""
    return [(each.verb, each.group, each.key, each.choice, each.messages) for each in reversed(client.admin.audit("t"))]


@pytest.fixture
def client(lanelog_client: Client) -> Client:
    """Topic t: five messages in lane k, of which group g has settled the first."""
    lanelog_client.publish("t", "k", b"x")
    settle(lanelog_client, 1, "g")
    lanelog_client.publish_many("t", [("k", b"x")] * 4)
    return lanelog_client


@pytest.mark.thorough
@pytest.mark.parametrize("first", [True, False])
def test_each_verb_leaves_an_entry(lanelog_server: DevServer, first: bool) -> None:
    """Each method that changes something records who, why, on what and from where; a read or a dry run does not."""
    late = {
        "delete_dead_letters",
        "release",
        "delete_group",
        "delete_topic",
    }  # after the others nothing is left for them
    with open_shop(lanelog_server) as url, lanelog.connect(url) as client:
        before = client.admin.audit()
        admin = client.admin.acting("ann", "INC-7")
        chosen = [verb for verb in AUDITED if (verb.method in late) is not first]
        for verb in chosen:
            for dry_run in (True, False):
                getattr(admin, verb.method)(*verb.args, **(verb.options | {"dry_run": dry_run}))
        found = client.admin.audit()
    assert found[len(found) - len(before) :] == before
    new = found[: len(found) - len(before)]
    assert [each.verb for each in reversed(new)] == [verb.method for verb in chosen]
    assert {each.by for each in new} == {"ann"}
    assert {each.reason for each in new if each.verb != "skip"} == {"INC-7"}  # `skip` has a reason of its own
    assert len({each.call for each in new}) == len(new)
    assert all(each.account and each.process.count(":") == 1 and each.topic for each in new)


def test_what_was_chosen_and_how_much_it_was(client: Client) -> None:
    """Entries have the arguments, and count messages; a call that changes nothing leaves none."""
    admin = client.admin
    admin.skip("t", "g", "k", 3, reason="it hangs", dry_run=False)
    admin.skip("t", "g", "k", 3, reason="it hangs", dry_run=False)
    admin.seek("t", "g", key="k", to="latest", dry_run=False)
    admin.pause("t", "g")
    admin.pause("t", "g")
    admin.purge("t", before=3, dry_run=False)
    assert acted(client) == [
        ("skip", "g", "k", "offset 3", 1),
        ("seek", "g", "k", "to latest", 3),
        ("pause", "g", None, "", 0),
        ("purge", None, None, "before offset 3", 2),
    ]
    assert [each.verb for each in admin.audit(limit=1)] == ["purge"]
    with pytest.raises(ConfigurationError, match="no topic 'other'"):
        admin.audit("other")


@pytest.mark.thorough
@pytest.mark.parametrize("committed", [True, False])
def test_an_unanswered_commit_leaves_one_entry(
    client: Client, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """The entry committed with its change, or neither did, and the repetition writes it."""
    with every_commit_unanswered_once(monkeypatch, committed=committed):
        client.admin.skip("t", "g", "k", 3, reason="it hangs", dry_run=False)
    assert acted(client) == [("skip", "g", "k", "offset 3", 1)]


def test_an_account_that_may_not_write_it_is_refused(lanelog_server: DevServer) -> None:
    """By each verb, and nothing has changed then."""
    with open_shop(lanelog_server) as url, connect(url) as root:
        tables = [name for (name,) in rows(root, "SHOW TABLES") if name != "queue_audit"]
        grants = {"*": "SELECT", **dict.fromkeys(tables, "INSERT, UPDATE, DELETE")}
        before = everything(root)
        with account(root, url, grants) as limited, lanelog.connect(limited) as client:
            for verb in AUDITED:
                with pytest.raises(DatabaseError, match="queue_audit"):
                    getattr(client.admin, verb.method)(*verb.args, **verb.options)
        assert everything(root) == before


def test_old_entries_go_with_the_next_verb(client: Client, lanelog_url: str, raw: Any) -> None:
    """The next method deletes entries of more than a year; an account that may not delete them leaves them."""
    client.admin.pause("t", "g")
    rows(raw, OLD, audit.RETENTION_MS + 1000)
    client.admin.resume("t", "g")
    rows(raw, OLD + " WHERE verb = 'resume'", audit.RETENTION_MS - 60_000)
    client.admin.pause("t", "g")
    assert [name for name, *_ in acted(client)] == ["resume", "pause"]
    rows(raw, OLD, 120_000)
    tables = [name for (name,) in rows(raw, "SHOW TABLES") if name != "queue_audit"]
    grants = {"*": "SELECT", **dict.fromkeys(tables, "INSERT, UPDATE, DELETE"), "queue_audit": "INSERT"}
    with account(raw, lanelog_url, grants) as limited, lanelog.connect(limited) as other:
        assert other.admin.resume("t", "g").changed
    assert [name for name, *_ in acted(client)] == ["resume", "pause", "resume"]


def test_older_tables_have_no_audit(client: Client, lanelog_url: str, raw: Any) -> None:
    """The verbs work as before it, and the list is empty."""
    set_back(raw, 4)
    with lanelog.connect(lanelog_url) as other:
        assert other.admin.pause("t", "g").changed
        assert other.admin.audit() == []


@pytest.mark.thorough
@pytest.mark.parametrize(("by", "reason"), [("a" * 256, ""), ("ann", "r" * 1025), (7, ""), ("ann", None)])
def test_who_acts_is_checked(client: Client, by: Any, reason: Any) -> None:
    """Before anything is done."""
    with pytest.raises(ConfigurationError):
        client.admin.acting(by, reason)


def test_from_a_terminal(client: Client, lanelog_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--why` is optional, the login name is who; a publisher that takes its own message back is no operator."""
    monkeypatch.setenv("LOGNAME", "ann")
    lanelog_cli = Command(lanelog_url)
    lanelog_cli("release", "t", "g", "k", "--execute", "--why", "it is stuck")
    lanelog_cli("pause", "t", "g", "--why", "deploy")
    lanelog_cli("resume", "t", "g")
    client.publish("t", "k", b"x", id="later", delay=600)
    assert client.cancel_scheduled("t", "k", "later")
    found = lanelog_cli.json("audit", "t")
    acts = [(each["verb"], each["by"], each["reason"]) for each in found]
    assert acts == [("resume", "ann", ""), ("pause", "ann", "deploy")]
    heads, (resumed, _) = lanelog_cli.table("audit", "--wide")
    assert ("VERB" in heads, "resume" in resumed) == (True, True)
    assert one(raw, "SELECT COUNT(*) FROM queue_audit") == 2
