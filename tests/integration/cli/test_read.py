"""The verbs that look, on a real server: what they print, as columns and as JSON, and when they raise an alarm."""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import Any

import pytest

import lanelog
from lanelog._log.lookup import owners
from lanelog.admin.operate import status
from lanelog.admin.read import tail
from lanelog.admin.totals import lanes, topics
from lanelog.admin.totals.ages import Breadth
from lanelog.cli.command import verbs
from lanelog.cli.read import messages
from support.cli import Command
from support.refusing import refused
from support.situations import Situations, fill
from support.sql import rows
from support.waiting import Gate, accept, eventually, raising

PASSED = {
    "queue_messages": ["created_at", "published_at", "failed_at"],
    "queue_groups": ["created_at"],
    "queue_subscriber_heartbeats": ["deregistered_at"],
}
"""Columns that tell when something was, in tables that the tests of `status` look at."""


@pytest.fixture
def later(raw: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets 45 seconds pass for all that is in the tables, and for the server, which may have been started just now."""

    def pass_by() -> None:
        for table, columns in PASSED.items():
            aged = ", ".join(f"{column} = IF({column} > 45000, {column} - 45000, {column})" for column in columns)
            rows(raw, f"UPDATE {table} SET {aged}")

    monkeypatch.setattr(owners, "uptime", lambda _cx: 3600.0)
    return pass_by


@pytest.fixture
def working(lanelog_client: lanelog.Client) -> Iterator[lanelog.Client]:
    """Group `builders` at work on three lanes of `merge`: `held` runs, `fails` waits, `done` is done."""
    gate = Gate()

    def handle(message: lanelog.Message) -> None:
        if message.key == "held":
            gate()
        if message.key == "fails":
            message.nack(delay=600, reason="no \x1b[31mbranch")

    lanelog_client.publish_many("merge", [("done", b"1"), ("held", b"1"), ("fails", b"1"), ("fails", b"2")])
    with lanelog_client.subscribe("merge", "builders", handle, name="worker"), gate:
        gate.reached()
        lanes = partial(lanelog_client.admin.lanes, "merge", "builders")
        left = {"done": (0, 0), "held": (1, 0), "fails": (2, 1)}
        eventually(lambda: {lane.key: (lane.lag, lane.waiting) for lane in lanes()} == left)
        yield lanelog_client


def test_lanes_have_their_columns(command: Command, working: lanelog.Client) -> None:
    """Offsets, lag, age, owner, lease, attempts and error of the first unsettled message; nothing steers a terminal."""
    heads, lines = command.table("lanes", "merge", "builders", "--by", "key")
    assert heads == ["KEY", "ACKED", "HEAD", "LAG", "OLDEST", "OWNER", "LEASE", "ATTEMPTS", "ERROR"]
    done, fails, held = lines
    assert done[:5] == ["done", "1", "1", "0", "-"]
    assert fails[:4] == ["fails", "0", "2", "2"]
    assert fails[5].startswith("worker:")
    assert fails[7:] == ["1", r"no \x1b[31mbranch"]
    assert held[1:4] == ["0", "1", "1"]
    assert command.table("lanes", "merge", "builders", "--by", "lag")[1][0][0] == "fails"
    assert len(command.table("lanes", "merge", "builders", "--limit", "1")[1]) == 1


def test_groups_topics_lag_and_offsets_count_the_same(command: Command, working: lanelog.Client) -> None:
    """Every view of the lag is exact."""
    heads, lines = command.table("lag")
    assert dict(zip(heads, lines[0], strict=True)) | {"OLDEST": ""} == {
        "TOPIC": "merge",
        "GROUP": "builders",
        "LANES": "3",
        "LAGGING": "2",
        "LAG": "3",
        "OLDEST": "",
        "IN-FLIGHT": "1",
        "WAITING": "1",
        "MEMBERS": "1",
    }
    assert [each["lag"] for each in command.json("lag", "merge", "builders")] == [3]
    assert [line[7] for line in command.table("groups")[1]] == ["3"]
    assert command.table("topics")[1][0][:6] == ["merge", "3", "4", "4", "0", "0"]
    offsets = {line[0]: line[1:6] for line in command.table("offsets", "merge", "builders")[1]}
    assert offsets == {
        "done": ["builders", "1", "1", "0", "1"],
        "fails": ["builders", "0", "2", "2", "1"],
        "held": ["builders", "0", "1", "1", "1"],
    }
    assert [line[0] for line in command.table("offsets", "merge", "--key", "held")[1]] == ["held"]


def test_topics_describes_one(command: Command, working: lanelog.Client) -> None:
    """The answer has lanes, messages, dead letters and groups, also as JSON; an unknown name is refused."""
    lines = command("topics", "merge").stdout.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == ["topic", "lanes", "messages", "dead", "groups"]
    assert lines[0].split() == ["topic", "merge"]
    assert "4 in the log, of 4 published" in lines[2]
    assert lines[4].split() == ["groups", "builders"]
    assert command.json("topics", "merge")["groups"] == ["builders"]
    working.publish("other", "k", b"1")
    assert "none: nobody reads it" in command("topics", "other").stdout
    assert "no topic 'mergee': did you mean 'merge'" in command.refused("topics", "mergee")


def test_members_and_leases_name_the_owner(command: Command, working: lanelog.Client) -> None:
    """The commands show who is alive, and which lanes it owns; no lease is stale."""
    ((member, state, lanes, *_),) = command.table("members", "merge", "builders")[1]
    assert (state, lanes) == ("alive", "3")
    assert {(line[3], line[4]) for line in command.table("leases", "merge")[1]} == {(member, "alive")}
    assert command.json("leases", "--stale") == []


def test_a_monitor_gets_a_status_and_one_line(command: Command, working: lanelog.Client) -> None:
    """Within the bounds 0 and silence; beyond them 1, and the worst on standard error; the table in both cases."""
    for verb in (["lag"], ["groups", "merge"], ["status"], ["lag", "merge", "builders"]):
        quiet = command(*verb, "--max-lag", "3", "--max-age", "3600")
        assert quiet.stderr == ""
        loud = command(*verb, "--max-lag", "2", status=1)
        assert loud.stderr == "lag 3 > 2 on merge builders\n"
        assert loud.stdout
        assert "on merge builders" in command(*verb, "--max-age", "0", status=1).stderr
    assert command("lanes", "merge", "builders", "--max-lag", "1", status=1).stderr == "lag 2 > 1 on merge fails\n"
    assert json.loads(command("lag", "--max-lag", "2", "--json", status=1).stdout)[0]["lag"] == 3


@pytest.mark.thorough
def test_a_bound_covers_groups_beyond_the_page_or_says_that_it_does_not(
    command: Command, lanelog_client: lanelog.Client, made: Situations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lag` and `groups` without a bound list 1,000 groups and say so; a bound is checked over all of them."""
    monkeypatch.setattr(status, "COMPARING", 60.0)  # a busy machine compares 1,000 groups more slowly
    made.register_many(1000)
    made.place("first", 1, group="")  # all of them have settled it
    lanelog_client.subscribe("u", "behind", accept).stop()
    lanelog_client.publish("u", "k", b"x")  # the last one by topic and name

    for verb in ("lag", "groups"):
        listed = command(verb)
        assert len(listed.stdout.splitlines()) == 1 + 1000
        assert listed.stderr == "only the first 1,000 groups were read\n"
        assert command(verb, "--max-lag", "0", status=1).stderr == "lag 1 > 0 on u behind\n"
    assert json.loads(command("lag", "t", "g000999", "--max-lag", "0", "--json").stdout)[0]["group"] == "g000999"

    told = "only 1,000 of 1,002 groups were read: name a topic, or a pattern with fewer\n"
    assert command("status").stderr == told
    assert command("status", "--max-lag", "1", status=1).stderr == told


def test_a_bound_of_status_does_not_depend_on_topics_that_were_left_out(
    command: Command, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups were checked. That there are more topics is said, and is no alarm."""
    for topic in ("s", "t"):
        lanelog_client.subscribe(topic, "g", accept).stop()
        lanelog_client.publish(topic, "k", b"x")
    monkeypatch.setattr(status, "TOPICS", 1)
    told = "only 1 of 2 topics were read: name a topic, or a pattern with fewer\n"
    assert command("status", "--max-lag", "1").stderr == told
    assert command("status", "--max-lag", "0", status=1).stderr == told + "lag 1 > 0 on s g and 1 more\n"


def test_status_finds_a_paused_lane_in_which_nothing_lags(
    lanelog_client: lanelog.Client, made: Situations, command: Command
) -> None:
    """Beside lanes that lag, also where the group has no member and nothing else can be wrong with a lane."""
    lanelog_client.publish_many("t", [(key, b"x") for key in "ab"])
    made.place("b", 1, paused_at=1000, paused_by="ops", pause_reason="a change")
    problems = lanelog_client.admin.status().problems
    assert [(each.what, each.key) for each in problems if each.what == "paused"] == [("paused", "b")]
    assert "PAUSED  t g b" in command("status").stdout


def test_status_reads_the_reasons_of_dead_letters_of_some_topics(
    lanelog_client: lanelog.Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those with the most dead letters; of another topic it shows their number, and the command that reads them.

    A topic with too many to read takes nobody's turn.
    """
    for topic, count in (("few", 1), ("many", 3), ("some", 2)):
        lanelog_client.subscribe(topic, "g", accept).stop()
        fill(lanelog_client, "k", count, f"{topic}_dlq")
        failed = f"failed_group = 'g', last_error = 'boom', original_topic = '{topic}'"
        rows(raw, f"UPDATE queue_messages SET {failed} WHERE topic = '{topic}_dlq'")
    rows(raw, "UPDATE queue_partitions SET holds_dead_letters = 1 WHERE topic LIKE '%%dlq' AND partition_key = ''")
    monkeypatch.setattr(status, "LETTERS", 2)
    monkeypatch.setattr(status, "EXPLAINED", 1)
    found = {each.topic: each for each in lanelog_client.admin.status().problems}
    assert {topic: each.reason for topic, each in found.items()} == {"few": None, "many": None, "some": "r-81f5"}
    assert found["few"].detail == "1 dead letter"
    monkeypatch.setattr(status, "EXPLAINED", 9)
    monkeypatch.setattr(status, "LETTERS_TOGETHER", 2)
    found = {each.topic: each for each in lanelog_client.admin.status().problems}
    assert {topic for topic, each in found.items() if each.reason} == {"some"}
    assert found["few"].command == "lanelog dlq list few --reasons"


def test_a_bound_of_the_age_is_not_kept_where_older_messages_may_be(
    command: Command, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too many lanes that lag, the age is a lower bound only, so the exit status is 1."""
    lanelog_client.subscribe("t", "g", accept).stop()
    lanelog_client.publish_many("t", [(key, b"x") for key in "abc"])
    few = Breadth(exact=0, candidates=2)
    monkeypatch.setattr(topics, "groups", partial(topics.groups, breadth=few))
    monkeypatch.setattr(status, "USUAL", few)
    for verb in ("lag", "groups", "status"):
        told = command(verb, "--max-age", "3600", status=1).stderr
        assert told == "the oldest age of t g is a lower bound: too many lanes lag to know it exactly\n"
        assert command(verb, "--max-lag", "3").stderr == ""
        assert "> 0s on t g\n" in command(verb, "--max-age", "0", status=1).stderr


@pytest.mark.thorough
def test_a_bound_over_more_groups_than_can_be_read_is_not_kept(command: Command, made: Situations) -> None:
    """Beyond 9,999 groups a bound exits with status 1: nobody knows whether it holds."""
    made.register_many(10_000)
    told = "only the first 9,999 groups were read\n"
    assert command("lag", "--max-lag", "1", status=1).stderr == told


def test_a_bound_covers_lanes_beyond_the_limit(command: Command, lanelog_client: lanelog.Client) -> None:
    """`lanes` lists as many as --limit allows; the lane that lags most may be another one."""
    lanelog_client.subscribe("merge", "builders", accept).stop()
    lanelog_client.publish("merge", "old", b"1")
    lanelog_client.publish_many("merge", [("young", b"1"), ("young", b"2")])
    line = command("lanes", "merge", "builders", "--limit", "1", "--max-lag", "1", status=1)
    assert "old" in line.stdout
    assert line.stderr == "lag 2 > 1 on merge young\n"


def test_a_bound_of_the_age_covers_lanes_that_were_not_compared(
    command: Command, lanelog_client: lanelog.Client, made: Situations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lanes` compares those in which nothing was settled for longest; an older message may be in another lane.

    The age of the group has it. Where that is a lower bound, too, nobody knows, so the exit status is 1.
    """
    made.place("first", 1)
    lanelog_client.publish_many("t", [(key, b"x") for key in "abc"])
    for key in "abc":
        made.place(key, 0, updated_at=1_000_000 + ord(key))
    made.written("c", 1, ago=900)  # in the lane that has made progress last
    few = Breadth(candidates=2)
    monkeypatch.setattr(lanes, "lanes", partial(lanes.lanes, breadth=few))
    monkeypatch.setattr(topics, "groups", partial(topics.groups, breadth=few))
    bounded = partial(command, "lanes", "t", "g", "--limit", "1", "--max-age")
    assert bounded("1800").stderr == ""
    told = bounded("600", status=1).stderr
    assert told.startswith("oldest 15m")
    assert told.endswith(" > 600s on t g\n")

    monkeypatch.setattr(topics, "groups", partial(topics.groups, breadth=Breadth(exact=0, candidates=2)))
    told = "the oldest age of t g is a lower bound: too many lanes lag to know it exactly\n"
    assert bounded("1800", status=1).stderr == told
    assert command("lanes", "t", "g", "--max-age", "1800").stderr == ""  # all of them are listed


def test_a_monitor_bounds_dead_letters(command: Command, lanelog_client: lanelog.Client) -> None:
    """The bound is for all topics, one, or one group; redriven and deleted dead letters do not count."""
    admin = lanelog_client.admin
    bound = "--max-dead-letters"
    lanelog_client.publish_many("merge", [("a", b"1"), ("b", b"2")])
    with (
        lanelog_client.subscribe("merge", "builders", raising(lanelog.Reject, "bad")),
        lanelog_client.subscribe("merge", "readers", lambda _: None),
    ):
        eventually(lambda: sum(group.lag for group in admin.groups("merge")) == 0)
    for where, name in (([], "merge_dlq"), (["merge"], "merge"), (["merge", "builders"], "merge builders")):
        assert command("lag", *where, bound, "2").stderr == ""
        assert command("lag", *where, bound, "1", status=1).stderr == f"dead letters > 1 on {name}\n"
    assert command("lag", "merge", "readers", bound, "0").stderr == ""
    lanelog_client.publish("merge", "a", b"3")
    line = command("lag", "merge", bound, "1", "--max-lag", "0", status=1).stderr
    assert line == "lag 1 > 0 on merge builders and 1 more; dead letters > 1 on merge\n"
    command("dlq", "delete", "merge", "builders", "--all", "--execute")
    for where in ([], ["merge"], ["merge", "builders"]):
        assert command("lag", *where, bound, "0").stderr == ""


def test_status_names_what_is_stuck_and_what_repairs_it(
    command: Command, working: lanelog.Client, later: Callable[[], None]
) -> None:
    """The failing lane with its error, owner and command, which can be run as it stands, and shows what it would do."""
    assert command.json("status")["problems"] == []  # a state that may pass by itself is none
    later()
    text = command("status").stdout
    assert text.startswith("1 topic, 1 group, 1 member: lag 3, oldest ")
    assert "FAILING  merge builders fails offset 1, the oldest waits " in text
    assert r"attempt 1 failed: no \x1b[31mbranch; the next in 9m" in text
    (line,) = (line.strip() for line in text.splitlines() if line.startswith("    $ "))
    assert line == "$ lanelog retry merge builders fails"
    (problem,) = command.json("status")["problems"]
    assert (problem["key"], problem["offset"], problem["what"]) == ("fails", 1, "failing")
    assert "would hand out 1 message" in command(*shlex.split(line.removeprefix("$ lanelog "))).stdout
    assert "skipped offset 1" in command("skip", "merge", "builders", "fails", "1", "--why", "…", "--execute").stdout
    eventually(lambda: "FAILING" not in command("status").stdout or "offset 2" in command("status").stdout)


def test_status_of_a_database_without_trouble(command: Command, lanelog_client: lanelog.Client) -> None:
    """No group, or a group that is through: nothing is stuck."""
    lanelog_client.publish("merge", "k", b"1")
    said = command("status").stdout
    assert said == "1 topic, 0 groups, 0 members: lag 0, oldest -, 0 dead letters\n\nnothing is stuck\n"


@pytest.mark.parametrize("line", ["{0} topics", "topics {0}", "--url mysql://nobody@127.0.0.1:1/none topics {0}"])
def test_the_url_stands_anywhere(lanelog_client: lanelog.Client, lanelog_url: str, line: str) -> None:
    """Before the verb or behind it; the last one is meant."""
    lanelog_client.publish("merge", "k", b"1")
    (found,) = Command(None).json(*line.format(f"--url {lanelog_url}").split())
    assert found["topic"] == "merge"
    below = f"dlq --url {lanelog_url} list merge"
    assert Command(None).json(*below.split()) == []


def test_show_lists_a_lane_and_describes_a_message(command: Command, working: lanelog.Client) -> None:
    """Payload, metadata, and the state for each group; raw bytes on demand; an id as well as an offset."""
    working.publish("merge", "done", b"\xff\x00", id="raw", metadata={"by": "ann"})
    assert [line[0] for line in command.table("show", "merge", "fails")[1]] == ["1", "2"]
    assert [line[0] for line in command.table("show", "merge", "fails", "--from", "2")[1]] == ["2"]
    text = command("show", "merge", "fails", "1").stdout
    assert "offset 1 of merge, lane fails" in text
    states = [line.split()[:3] for line in text.splitlines() if line.startswith("builders")]
    assert states == [["builders", "retryable", "1"]]
    assert text.splitlines()[-2:] == ["last error of group builders", r"  no \x1b[31mbranch"]
    assert command("show", "merge", "done", "--id", "raw", "--raw").stdout_bytes == b"\xff\x00"
    described = command.json("show", "merge", "done", "2")
    assert described["payload"] == {"base64": "/wA="}
    assert described["metadata"] == {"by": "ann"}
    assert command.json("show", "merge", "held", "1")["states"][0]["state"] == "processing"


def test_show_finds_a_message_by_its_id_alone(
    command: Command, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever lane; an id of several lanes names them, and a look that is not over all lanes says so."""
    for key in ("a", "b", "c"):
        lanelog_client.publish("merge", key, key, id="same" if key != "b" else "one")
    assert command("show", "merge", "--id", "one", "--raw").stdout == "b"
    assert "2 lanes of topic 'merge' have a message 'same': name one, 'a', 'c'" in command.refused(
        "show", "merge", "--id", "same"
    )
    monkeypatch.setattr(messages, "_LANES", 1)
    told = command.refused("show", "merge", "--id", "one")
    assert told == "no message with id 'one' in the first 1 of 3 lanes of topic 'merge': give its KEY"


def test_tail_prints_the_last_messages_of_a_lane(command: Command, lanelog_client: lanelog.Client) -> None:
    """Ten, or as many as asked for; as lines of text or of JSON."""
    lanelog_client.publish_many("merge", [("k", f"m{n}") for n in range(1, 13)])
    payloads = [line.split()[-1] for line in command("tail", "merge", "k").stdout.splitlines()]
    assert payloads == [f"m{n}" for n in range(3, 13)]
    assert command("tail", "merge", "k", "-n", "0").stdout == ""
    lines = command("tail", "merge", "k", "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["m11", "m12"]
    lanelog_client.publish_many("merge", [("long", f"{n}") for n in range(1, 2501)])
    lines = command("tail", "merge", "long", "-n", "2400").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [f"{n}" for n in range(101, 2501)]


def test_tail_ends_in_a_lane_that_grows(lanelog_client: lanelog.Client) -> None:
    """The command ends with the last message of its beginning, or never if publishers are faster than it reads."""
    lanelog_client.publish_many("t", [("k", b"x")] * 5)
    seen = []
    for message in lanelog_client.admin.tail("t", "k", lines=3):
        seen.append(message.offset)
        lanelog_client.publish("t", "k", b"x")
        assert len(seen) < 10
    assert seen == [3, 4, 5]
    assert list(lanelog_client.admin.tail("t", "k", lines=0)) == []


def test_tail_of_a_lane_is_the_same_among_any_number_of_lanes(lanelog_client: lanelog.Client) -> None:
    """A lane that is not among those followed without a key can be tailed, too."""
    last = partial(tail.tail, lanelog_client._database, "merge", lines=2, follow=False, interval=1.0, lanes=2)
    lanelog_client.publish_many("merge", [(key, f"m{n}") for key in ("a", "b", "z") for n in range(1, 6)])
    for key in ("a", "z"):
        assert [each.offset for each in last(key)] == [4, 5]
    assert "no lane 'y'" in refused(last, "y")
    assert "no topic 'other'" in refused(lanelog_client.admin.tail, "other", "a")


def test_tail_of_a_topic_prints_the_newest_messages_of_all_lanes(
    command: Command, lanelog_client: lanelog.Client, raw: Any
) -> None:
    """Messages come in the order of their insertion, the newest last; --follow continues. Omitted lanes are named."""
    for number in range(1, 13):
        lanelog_client.publish("merge", f"k{number % 3}", f"m{number}")
        rows(raw, "UPDATE queue_messages SET created_at = %s WHERE payload = %s", 1000 * number, f"m{number}")

    def payloads(*arguments: str) -> list[str]:
        return [line.split()[-1] for line in command("tail", "merge", *arguments).stdout.splitlines()]

    assert payloads() == [f"m{number}" for number in range(3, 13)]
    assert payloads("-n", "2") == ["m11", "m12"]
    assert payloads("-n", "0") == []
    assert payloads("-n", "50") == [f"m{number}" for number in range(1, 13)]
    lines = command("tail", "merge", "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["k2", "k0"]
    rows(raw, "DELETE FROM queue_messages WHERE partition_key = 'k0'")
    assert payloads("-n", "3") == ["m8", "m10", "m11"]


def test_tail_of_a_topic_says_which_lanes_it_left_out(
    command: Command, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error has the number of omitted lanes: messages there may be newer."""
    lanelog_client.publish_many("merge", [(key, key.encode()) for key in "abc"])
    assert command("tail", "merge").stderr == ""
    monkeypatch.setattr(messages, "_LANES", 2)
    told = "only the first 2 of 3 lanes by key are read: name a KEY\n"
    assert command("tail", "merge").stderr == told
    assert command("tail", "merge", "a").stderr == ""


def test_watch_reads_again_until_it_is_stopped(
    command: Command, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line of JSON for each look, each with what is there by then; Ctrl-C ends it in order."""
    looks: list[float] = []

    def rest(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt
        lanelog_client.publish("merge", "k", b"x")

    lanelog_client.publish("merge", "k", b"x")
    monkeypatch.setattr(verbs, "rest", rest)
    lines = command("topics", "--watch", "--interval", "7", "--json").stdout.splitlines()
    assert [json.loads(line)[0]["messages"] for line in lines] == [1, 2, 3]
    assert looks == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("key", ["k", None])
def test_tail_follows(
    command: Command, lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """New messages of a lane, or of all lanes, new ones included, each once and in order; Ctrl-C ends it in order."""
    looks = 0

    def rest(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        lanelog_client.publish_many("merge", [("k", f"{looks}a"), ("k", f"{looks}b"), (f"new-{looks}", "n")])

    lanelog_client.publish("merge", "k", b"old")
    monkeypatch.setattr(tail, "rest", rest)
    text = command("tail", "merge", *([key, "-n", "0"] if key else []), "--follow").stdout
    seen = [(line.split()[0], line.split()[-1]) for line in text.splitlines()]
    assert [what for lane, what in seen if lane == "k"] == ["1a", "1b", "2a", "2b"]
    assert [lane for lane, _ in seen if lane != "k"] == ([] if key else ["new-1", "new-2"])
    looks = 0
    text = command("tail", "merge", *([key] if key else []), "-n", "1", "--follow").stdout
    assert [line.split()[-1] for line in text.splitlines()][: 2 if key else 1] == (["2b", "1a"] if key else ["n"])


@pytest.mark.thorough
def test_a_backlog_in_one_key_is_named_with_its_key_and_rates(
    command: Command, lanelog_client: lanelog.Client, raw: Any
) -> None:
    """Two looks say how many messages come in and go out, or a look and an earlier answer."""
    lanelog_client.publish_many("merge", [("big", b"x")] * 200 + [("small", b"x")] * 20)
    on, handled = Event(), Event()

    def handle(message: lanelog.Message) -> None:
        if message.key == "big":
            handled.set()
            on.wait(0.2)

    with lanelog_client.subscribe("merge", "builders", handle):
        eventually(lambda: lanelog_client.admin.groups("merge")[0].lagging_lanes == 1)
        rows(raw, "UPDATE queue_messages SET created_at = created_at - 90000")
        assert handled.wait(10)
        before = lanelog_client.admin.status()
        (found,) = before.problems
        assert (found.what, found.key, found.command) == ("behind", "big", "lanelog lanes merge builders --by lag")
        come, go = map(float, re.findall(r"([\d.]+)/s (?:come in|go out)", found.detail))
        assert come == 0.0
        assert 1.0 <= go <= 6.0
        assert "order='concurrent' or a faster handler; more workers cannot" in found.detail
        assert "BEHIND  merge builders big, the oldest waits " in command("status").stdout
        lanelog_client.publish_many("merge", [("big", b"x")] * 40)
        (later,) = lanelog_client.admin.status(since=before).problems
        assert not later.detail.partition("key, ")[2].startswith("0.0/s come in")
        on.set()


def test_no_backlog_is_read_twice(lanelog_client: lanelog.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer needs no second read when nothing is behind."""
    lanelog_client.publish("merge", "k", b"1")
    monkeypatch.setattr("lanelog.admin.operate.backlog.APART", 60.0)
    began = time.monotonic()
    assert lanelog_client.admin.status().heaviest_lanes == ()
    assert time.monotonic() - began < 30
