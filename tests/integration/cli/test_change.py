"""The verbs that change: without --execute they tell and do nothing, with it they do what they told."""

import json
from typing import Any

import pytest
from attrs import evolve

import lanelog
from lanelog.admin import Admin
from lanelog.cli.steer import change
from lanelog.errors import DatabaseError
from support.cli import Command, everything
from support.situations import Situations
from support.sql import one, rows, watermark
from support.waiting import eventually, raising

NOTE = "nothing was changed: add --execute to do it\n"


@pytest.fixture
def shop(lanelog_client: lanelog.Client) -> lanelog.Client:
    """Group builders was through with `good` (3 messages) and rejected the 2 of `bad`; then one more came to `good`."""

    def handle(message: lanelog.Message) -> None:
        if message.key == "bad":
            raise lanelog.Reject(f"no branch {message.payload.decode()}")

    lanelog_client.publish_many("merge", [(key, f"{n}") for key in ("good", "bad") for n in (1, 2)] + [("good", "3")])
    with lanelog_client.subscribe("merge", "builders", handle, retention=0):
        eventually(lambda: lanelog_client.admin.topic("merge").dead_letters == 2)
        eventually(lambda: lanelog_client.admin.groups("merge")[0].lag == 0)
    lanelog_client.publish("merge", "good", "4")
    lanelog_client.publish("other", "any", "1")
    return lanelog_client


# The command, what it tells, and what it tells once it did it.
TOLD = [
    (
        "seek merge builders --to latest",
        "set 2 lanes of builders on merge to latest: 0 settled messages again, 1 unsettled one skipped",
    ),
    (
        "seek merge builders --key good --to 4",
        "set 1 lane of builders on merge to 4: 0 settled messages again, 0 unsettled ones skipped",
    ),
    ("skip merge builders good 4 --why x", "offset 4 of builders on merge, lane good, which was pending after 0"),
    ("delete-group merge builders", "builders on merge: 2 lanes, 1 unsettled message, 0 running members"),
    ("delete-topic merge", "merge: 2 lanes, "),
    ("purge merge --before-offset 9", " in "),
    ("purge merge --before 2100-01-01T00:00:00Z", "  builders had not settled 1 of them"),
    ("purge merge --before 2100-01-01", " of merge, written before 2"),
    ("seek merge builders --to -1h", "set 2 lanes of builders on merge to 20"),
    ("dlq redrive merge builders --all", "2 dead letters of builders in 1 lane back into merge"),
    ("dlq redrive merge builders --all --to-topic other", "2 dead letters of builders in 1 lane back into other"),
    ("dlq delete merge builders --all", "2 dead letters of builders in 1 lane"),
]


@pytest.mark.parametrize(("line", "says"), TOLD, ids=[line for line, _ in TOLD])
def test_only_with_execute_anything_happens(
    command: Command, shop: lanelog.Client, raw: Any, line: str, says: str
) -> None:
    """The same words before, with a note on standard error, and after; and the same numbers as JSON."""
    before = everything(raw)
    told = command(*line.split())
    assert says in told.stdout
    assert told.stderr == NOTE
    planned = json.loads(command(*line.split(), "--json").stdout)
    assert planned["dry_run"] is True
    assert everything(raw) == before
    done = command(*line.split(), "--execute")
    assert says in done.stdout
    assert "would" in told.stdout
    assert "would" not in done.stdout
    assert done.stderr == ""
    assert everything(raw) != before


def test_seek_lists_the_lanes_that_move(command: Command, shop: lanelog.Client, raw: Any) -> None:
    """From where to where; a running group gets the messages again."""
    # Nothing is collected.
    rows(raw, "UPDATE queue_offsets SET offset_acked = 0, marked_through = 0 WHERE consumer_group = ''")
    text = command("seek", "merge", "builders", "--key", "good", "--to", "2", "--execute").stdout
    assert text.splitlines()[1:] == ["  good: 3 -> 1"]
    assert watermark(raw, "builders", "merge", "good") == 1


def test_pause_and_resume_act_at_once(command: Command, shop: lanelog.Client, raw: Any) -> None:
    """--dry-run shows the change; without it, it is made. The second time, the command says that it was made."""
    before = everything(raw)
    shown = command("pause", "merge", "builders", "--dry-run")
    assert shown.stdout == "would pause builders on merge: 1 message waiting\n"
    assert shown.stderr == "nothing was changed: leave --dry-run out to do it\n"
    assert everything(raw) == before
    assert command("pause", "merge", "builders", "--by", "ann", "--why", "deploy").stdout.startswith("paused ")
    assert "is paused already, since 2" in command("pause", "merge", "builders").stdout
    assert rows(raw, "SELECT paused_by, pause_reason FROM queue_groups") == [("ann", "deploy")]
    assert command.table("groups")[1][0][9] == "all"
    assert "by ann: deploy" in command("resume", "merge", "builders").stdout
    assert command("resume", "merge", "builders").stdout == "builders on merge is not paused\n"
    assert one(raw, "SELECT paused_at FROM queue_groups") == 0


def test_pause_names_who_did_it(command: Command, shop: lanelog.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login name, where there is one; no name is no obstacle."""
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    assert command.json("pause", "merge", "builders", "--key", "good")["by"] == "ann"
    assert command.table("lanes", "merge", "builders", "--by", "key")[1][1][6] == "paused"

    monkeypatch.setattr("getpass.getuser", raising(KeyError, "uid not found"))
    assert command.json("pause", "merge", "builders", "--key", "bad")["by"] == ""


def test_a_redrive_is_narrowed_by_key_time_and_number(command: Command, shop: lanelog.Client) -> None:
    """Of a reason, of ids, or of all; the oldest of a key go first, and a repetition takes the next."""
    line = ("dlq", "redrive", "merge", "builders")
    put = "put {} of builders in {} back into merge"
    assert put.format("2 dead letters", "1 lane") in command(*line, "--key", "bad").stdout
    assert put.format("0 dead letters", "0 lanes") in command(*line, "--key", "good").stdout
    assert put.format("2 dead letters", "1 lane") + ", dead-lettered since 2" in command(*line, "--since", "-1h").stdout
    assert put.format("0 dead letters", "0 lanes") in command(*line, "--since", "+1h").stdout
    assert put.format("0 dead letters", "0 lanes") in command(*line, "--all", "--key", "good").stdout
    first, second = (each.id for each in shop.admin.dead_letters("merge"))
    assert "1 id given" in command(*line, "--id", first, "--key", "good").stdout
    done = command(*line, "--all", "--limit", "1", "--execute").stdout
    assert done.startswith(put.format("1 dead letter", "1 lane"))
    assert [each.id for each in shop.admin.dead_letters("merge")] == [second]
    command(*line, "--key", "bad", "--since", "-1h", "--limit", "5", "--execute")
    assert shop.admin.dead_letters("merge") == []
    last = command.json("audit", "merge")[0]
    assert last["choice"].startswith("all, key bad, since 2")
    assert last["choice"].endswith("Z, at most 5")


def test_a_deletion_is_narrowed_as_a_redrive_is(command: Command, shop: lanelog.Client) -> None:
    """By key, time and number: the preview says what it would take, and the deletion takes that and no more."""
    line = ("dlq", "delete", "merge", "builders")
    took = "{} of builders in {}"
    assert took.format("would delete 2 dead letters", "1 lane") in command(*line, "--key", "bad").stdout
    assert took.format("0 dead letters", "0 lanes") in command(*line, "--all", "--key", "good").stdout
    expected = took.format("2 dead letters", "1 lane") + ", dead-lettered since 2"
    assert expected in command(*line, "--since", "-1h").stdout
    assert took.format("0 dead letters", "0 lanes") in command(*line, "--since", "+1h").stdout
    assert "exactly one of --id, --reason and --all" in command(*line, "--limit", "1", status=2).stderr
    _, second = (each.id for each in shop.admin.dead_letters("merge"))
    assert took.format("would delete 1 dead letter", "1 lane") in command(*line, "--all", "--limit", "1").stdout
    done = command(*line, "--all", "--limit", "1", "--why", "test data", "--execute").stdout
    assert took.format("deleted 1 dead letter", "1 lane") in done
    assert [each.id for each in shop.admin.dead_letters("merge")] == [second]
    command(*line, "--key", "bad", "--since", "-1h", "--limit", "5", "--execute")
    assert shop.admin.dead_letters("merge") == []
    last, first = command.json("audit", "merge")[:2]
    assert (first["choice"], first["reason"]) == ("all, at most 1", "test data")
    assert last["choice"].startswith("all, key bad, since 2")
    assert last["choice"].endswith("Z, at most 5")


def test_retry_ends_what_waits(command: Command, shop: lanelog.Client, raw: Any) -> None:
    """Without --execute it goes on waiting, and a second time nothing waits; JSON has the offsets."""
    Situations(raw, "merge", "builders").row("good", 4, retry_count=1, due=3600.0)
    before, line = everything(raw), ("retry", "merge", "builders", "good")
    told = command(*line)
    assert told.stdout == "would hand out 1 message of builders on merge, lane good at once\n"
    assert told.stderr == NOTE
    assert command.json(*line, "--offset", "4")["offsets"] == [4]
    other = command(*line, "--offset", "3", "--execute").stdout
    assert other == "nothing at offset 3 of builders on merge, lane good waits for another attempt\n"
    assert everything(raw) == before
    done = command(*line, "--why", "mended", "--execute").stdout
    assert done == "handed out 1 message of builders on merge, lane good at once\n"
    assert command(*line, "--execute").stdout == "nothing of builders on merge, lane good waits for another attempt\n"
    kept = command.json("audit", "merge")[0]
    assert (kept["verb"], kept["reason"], kept["messages"]) == ("retry", "mended", 1)


def test_retry_of_all_lanes_ends_what_waits_in_each(
    command: Command, shop: lanelog.Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page of lanes; those where nothing waits stay as they are. An error in the middle says what is done."""
    monkeypatch.setattr(change, "_PAGE", 1)
    shop.publish("merge", "new", b"1")
    for key, offset in (("good", 4), ("new", 1)):
        Situations(raw, "merge", "builders").row(key, offset, retry_count=1, due=3600.0)
    before, line = everything(raw), ("retry", "merge", "builders", "--all")
    told = command(*line)
    assert told.stdout == "would hand out 2 messages in 2 lanes of builders on merge at once\n"
    assert told.stderr == NOTE
    assert everything(raw) == before
    real, calls = Admin.retry, []

    def second_fails(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise DatabaseError("the server has gone away")
        return real(*args, **options)

    with monkeypatch.context() as failing:
        failing.setattr(Admin, "retry", second_fails)
        assert "1 lane done: the same command goes on" in command(*line, "--execute", status=1).stderr
    assert command(*line, "--execute").stdout == "handed out 1 message in 1 lane of builders on merge at once\n"
    assert command(*line, "--execute").stdout == "nothing of builders on merge waits for another attempt\n"
    assert {each["key"] for each in command.json("audit", "merge")} == {"good", "new"}


def test_release_takes_a_lane_from_its_owner(command: Command, shop: lanelog.Client, raw: Any) -> None:
    """The command names the owner and what is known of it; a lane without an owner stays as it is."""
    said = command("release", "merge", "builders", "good", "--execute").stdout
    assert said == "nobody has builders on merge, lane good\n"
    rows(raw, "UPDATE queue_partition_leases SET leased_by = 'gone:1' WHERE partition_key = 'good'")
    text = command("release", "merge", "builders", "good", "--execute").stdout
    assert text == "took builders on merge, lane good from gone:1 (missing)\n"


def test_dead_letters_are_listed_shown_and_chosen(command: Command, shop: lanelog.Client) -> None:
    """By id and by reason; an id that is none any more is counted, and nothing happens twice."""
    heads, lines = command.table("dlq", "list", "merge")
    assert heads[:3] == ["TOPIC", "KEY", "OFFSET"]
    first, second = (letter["id"] for letter in command.json("dlq", "list", "merge"))
    assert [line[:3] for line in lines] == [["merge_dlq", "bad", "1"], ["merge_dlq", "bad", "2"]]
    assert command.json("dlq", "list", "merge_dlq", "builders") == command.json("dlq", "list", "merge")
    heads, lines = command.table("dlq", "list", "merge", "--reasons")
    name = "r-3a46"
    assert [line[2:4] + line[-2:] for line in lines] == [["2", "1", name, "no branch #"]]
    assert command.json("dlq", "list", "merge", "--reason", name) == command.json("dlq", "list", "merge")
    assert command.json("dlq", "list", "merge", "--reason", "no branch #") == command.json("dlq", "list", "merge")
    assert command.json("dlq", "list", "merge", "--reason", "no other") == []
    text = command("dlq", "show", "merge", "bad", first).stdout
    assert text == command("dlq", "show", "merge", "bad", "1").stdout
    assert "original     offset 1 of merge" in text
    assert text.endswith("\nerror\n  no branch 1\n")
    command("dlq", "redrive", "merge", "builders", "--id", first, "--execute")
    again = command("dlq", "redrive", "merge", "builders", "--id", first, "--id", second)
    assert again.stdout.splitlines() == [
        "would put 1 dead letter of builders in 1 lane back into merge",
        "1 id given: no dead letter of builders (any more)",
    ]
    assert "redriven or deleted already" in command("dlq", "show", "merge_dlq", "bad", first).stdout
    wrong = command("dlq", "delete", "merge", "builders", "--reason", "no branch 2", "--execute", status=2).stderr
    assert wrong == f"Error: reasons have # for numbers and ids: those like this one are 'no branch #', or {name}\n"
    command("dlq", "delete", "merge", "builders", "--reason", name, "--execute")
    assert command.json("dlq", "list", "merge") == []


def test_what_is_left_to_do_is_an_alarm(
    command: Command, shop: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes whose rows somebody holds are left: exit status 1, and a line that says to run it again."""
    redriven = evolve(shop.admin.redrive("merge", "builders", all=True, dry_run=True), remaining=2, dry_run=False)
    purged = evolve(shop.admin.purge("merge", before=9, dry_run=True), remaining=1, dry_run=False)
    monkeypatch.setattr(Admin, "redrive", lambda *_, **__: redriven)
    monkeypatch.setattr(Admin, "purge", lambda *_, **__: purged)
    left = "left, because other transactions held their lanes: run it again\n"
    result = command("dlq", "redrive", "merge", "builders", "--all", "--execute", status=1)
    assert result.stderr == f"2 dead letters {left}"
    assert command("purge", "merge", "--before-offset", "9", "--execute", status=1).stderr == f"1 message {left}"


def test_maintain_once_collects_what_nobody_consumes(command: Command, shop: lanelog.Client, raw: Any) -> None:
    """Messages that every group is past, and settled dead letters; then there is nothing more to do."""
    rows(raw, "UPDATE queue_groups SET retention_ms = 0")
    command("dlq", "delete", "merge", "builders", "--all", "--execute")
    command("maintain", "--once")
    assert one(raw, "SELECT COUNT(*) FROM queue_messages WHERE topic <> 'other'") == 1
    assert command("maintain", "merge", "--once").stdout.startswith("1 topic: deleted 0 messages, 0 settled dead")
    assert command.json("maintain", "--once")["topics"] == ["merge", "merge_dlq", "other"]


def test_maintain_that_failed_for_a_topic_is_an_alarm(
    command: Command, shop: lanelog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are done, and the exit status is 1; without --once the next turn follows all the same."""
    done = evolve(shop.admin.maintain(topics=["merge"]), collected=3, failed={"orders": "DELETE command\ndenied"})
    monkeypatch.setattr(Admin, "maintain", lambda *_, **__: done)
    result = command("maintain", "--once", status=1)
    assert result.stdout.startswith("1 topic: deleted 3 messages")
    assert result.stderr == r"orders: DELETE command\ndenied" + "\n"
    turns: list[float] = []

    def rest(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("lanelog.cli.run.setup.rest", rest)
    # The handler would stay for other tests.
    monkeypatch.setattr("lanelog.cli.command.verbs.signal.signal", lambda *_: None)
    assert command("maintain", "--interval", "5").stdout.count("deleted 3 messages") == 2
    assert turns == [5.0, 5.0]
