"""What every verb does with bad input and without its database: one line, exit status 2, nothing changed.

What a terminal can say wrongly is said on the command line, which passes it on to Python; the rest in Python.
"""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import lanelog
from lanelog import Client, ConfigurationError
from support.accounts import PASSWORD
from support.cli import Command, everything
from support.shop import DECIDED, LINES

WHERE, LANE = ("merge", "builders"), ("merge", "good")
SCHEDULE = {"name": "s", "expression": "* * * * *", "topic": "merge", "key": "good", "payload": b"x"}

# Every verb that names something, with each of its names replaced by one that is not there.
NAMES = {
    "topic": ("merge", "halted", "over"),
    "group": ("builders",),
    "lane": ("good", "paused"),
    "schedule": ("nightly", "weekly"),
}
MISNAMED = [
    (line.replace(f" {name}", " nope", 1), f"no {kind} 'nope'")
    for line in LINES
    for kind, names in NAMES.items()
    for name in names
    if name in line.split()
    and not line.startswith("publish")  # which makes what is not there
    and not (kind == "lane" and line.startswith(("history", "scheduled")))  # a lane that is gone may have some
]

# Everything else that can be wrong with a line, and what the refusal must say.
WRONG: list[tuple[str, str]] = [
    ("topics --limit 0", "limit must be an int of 1 to 10000"),
    ("topics --limit many", "'many' is not a valid integer; see `lanelog topics --help`"),
    ("topics merge now", "unexpected extra argument"),
    ("tail nope --follow", "no topic 'nope'"),
    ("lag nope", "no topic 'nope'"),
    ("leases nope", "no topic 'nope'"),
    ("leases merge nope", "no group 'nope'"),
    ("offsets merge nope", "no group 'nope'"),
    ("offsets merge --key nope", "no lane 'nope'"),
    ("dlq list merge nope", "no group 'nope'"),
    ("dlq redrive merge builders --all --to-topic nope --execute", "no topic 'nope'"),
    ("seek merge builders --key nope --to earliest --execute", "no lane 'nope'"),
    ("groups --max-lag -1", "--max-lag"),
    ("groups --watch --max-lag 1", "--watch"),
    ("lag --watch --max-dead-letters 1", "--watch"),
    ("lag --max-dead-letters 10000", "--max-dead-letters"),
    ("members merge nope", "no group 'nope' is registered for topic 'merge'"),
    ("members merge", "give both names or neither"),
    ("lanes merge builders --by size", "'size' is not one of"),
    ("lanes merge builders --limit 10001", "limit must be"),
    ("lag merge builders --max-age soon", "--max-age"),
    ("show merge good 99", "no message with offset 99"),
    ("show merge good 0", "offsets begin at 1"),
    ("show merge good x", "'x' is not a valid integer"),
    ("show merge good --id nope", "no message with id 'nope'"),
    ("show merge good 1 --id nope", "one of"),
    ("show merge", "give the KEY of a lane, or --id"),
    ("show merge --id nope", "no message with id 'nope' in the "),
    ("show merge --id nope", " of topic 'merge': never there, or collected"),
    ("show merge good --raw", "--raw is for one message"),
    ("show merge good 1 --from 1", "--from is for a list"),
    ("tail merge -n -1", "-n"),
    ("publish merge good x --metadata nonsense", "write NAME=VALUE"),
    ("publish merge good x --file -", "not both"),
    ("publish merge good --file /nonexistent", "No such file"),
    ("publish merge good --id a --file -", "--id is for one MESSAGE"),
    ("publish merge", "give the KEY to publish under"),
    ("dlq list merge --reasons --limit x", "--limit"),
    ("dlq show merge nope x", "no dead letter 'x' in lane 'nope'"),
    ("dlq show merge bad nope", "no dead letter 'nope'"),
    ("dlq redrive merge builders --execute", "exactly one of --id, --reason and --all"),
    ("dlq redrive merge builders --all --id x --execute", "exactly one of"),
    ("dlq redrive merge builders --limit 1 --execute", "exactly one of"),
    ("dlq redrive merge builders --key bad --limit 0 --execute", "--limit"),
    ("dlq redrive merge builders --since lately --execute", "--since 'lately' is no time"),
    ("dlq redrive merge builders --all --rate 0 --execute", "rate"),
    ("dlq redrive merge builders --all --to-topic merge_dlq --execute", "where they are"),
    ("dlq delete merge builders --execute", "exactly one of"),
    ("dlq nope", "No such command 'nope'"),
    ("seek merge builders --key good --to 0 --execute", "offsets begin at 1"),
    ("seek merge builders --key good --to -1 --execute", "offsets begin at 1"),
    ("seek merge builders --to 1 --execute", "an offset is of one lane"),
    ("seek merge builders --to 2026-01-31T12:00:00 --execute", "no time zone: write 2026-01-31T12:00:00Z"),
    ("seek merge builders --to 2026-01-31T12:00:00+99:00 --execute", "cannot seek to"),
    ("seek merge builders --to 2026-02-30T12:00:00Z --execute", "cannot seek to"),
    ("seek merge builders --to 1969-01-01T00:00:00Z --execute", "1970"),
    ("seek merge builders --to lately --execute", "cannot seek to 'lately'"),
    ("seek merge builders --execute", "Missing option '--to'"),
    (f"pause merge builders --by {'x' * 256}", "255"),
    ("skip merge builders good 0 --why x --execute", "offset must be"),
    ("skip merge builders good 99 --why x --execute", "there is no message 99"),
    ("skip merge builders good one --why x --execute", "'one' is not a valid integer"),
    ("skip merge builders good 1 --execute", "Missing option '--why'"),
    ("skip merge builders good 1 --reason x --execute", "--reason selects dead letters: say why with --why"),
    ("pause merge builders --reason deploy", "--reason selects dead letters: say why with --why"),
    ("schedule pause nightly --reason deploy", "--reason selects dead letters: say why with --why"),
    ("retry merge builders good --offset 99 --execute", "there is no message 99"),
    ("retry merge builders --execute", "exactly one of KEY and --all"),
    ("retry merge builders good --all --execute", "exactly one of KEY and --all"),
    ("retry merge builders --all --offset 1 --execute", "--offset is for one lane"),
    ("purge merge --before 2026-01-31T12:00:00 --execute", "no time zone"),
    ("purge merge --before 2026-01-31T12:00:00+24:00 --execute", "cannot purge before"),
    ("purge merge --before 20260131 --execute", "cannot purge before '20260131'"),
    ("purge merge --before -1 --execute", "cannot purge before '-1'"),
    ("purge merge --before 2026 --execute", "cannot purge before '2026'"),
    ("purge merge --before-offset 0 --execute", "offsets begin at 1"),
    ("purge merge --execute", "exactly one of --before and --before-offset"),
    ("scheduled cancel merge good x", "no message 'x' is scheduled for lane 'good'"),
    ("scheduled cancel merge good x --execute", "no message 'x' is scheduled for lane 'good'"),
    ("publish merge good x --delay -1", "delay must be"),
    ("publish merge good x --delay 1 --deliver-at 2031-01-01T00:00:00Z", "not both"),
    ("publish merge good x --deliver-at 2031-01-01T00:00:00", "no time zone"),
    ("publish merge good x --deliver-at soon", "is no time"),
    ("publish merge good x --ttl 0", "ttl must be"),
    ("schedule add n '61 * * * *' merge good x", "bad minute"),
    ("schedule add n '0 0 30 2 *' merge good x", "bad day-of-month"),
    ("schedule add n '* * * * *' merge good x --timezone Berlin", "unknown time zone 'Berlin'"),
    ("schedule add n '* * * * *' merge good x --catch-up some", "latest, all, none"),
    ("schedule add n '* * * * *' merge good x --metadata a", "NAME=VALUE"),
    ("schedule add n '* * * * *' merge good x --ttl 0", "ttl must be"),
    ("schedule add n '* * * * *' merge good", "Missing argument 'MESSAGE'"),
    ("schedule preview '* * *'", "wrong number of fields"),
    ("schedule preview '* * * * *' --after soon", "is no time"),
    ("schedule preview '* * * * *' --after 2027-01-01T00:00:00", "has no time zone"),
    ("schedule preview '* * * * *' --count 0", "count must be 1 to 1000"),
    ("schedule list --limit 0", "limit must be"),
    ("status --max-age -1", "--max-age"),
    ("doctor now", "unexpected extra argument"),
    ("migrate now", "unexpected extra argument"),
    ("migrate --from 5", "--from is the version that --sql begins with"),
    ("migrate --sql --from 99", "must be 0 (none) to"),
    ("dev-server --server sqlite", "use auto, local, mysql-local"),
    ("xyzzy", "No such command 'xyzzy'; see `lanelog --help`"),
    ("stauts", "No such command 'stauts', did you mean 'status'; see `lanelog --help`"),
    ("redrive merge builders", "No such command 'redrive', did you mean 'dlq redrive'"),
    ("preveiw", "No such command 'preveiw', did you mean 'schedule preview'"),
    ("list", "did you mean 'dlq list' or 'schedule list' or 'scheduled list'"),
    ("dlq redirve merge builders", "No such command 'redirve', did you mean 'redrive'; see `lanelog dlq --help`"),
    ("--nope", "No such option"),
    # Two options of which one would not be read.
    ("topics --interval 7", "--interval is for --watch; see `lanelog topics --help`"),
    ("tail merge --interval 7", "--interval is for --follow"),
    ("maintain --once --interval 7", "--interval is for runs that go on: leave out --once"),
    ("metrics --rules --listen 127.0.0.1:0", "--listen is for serving: leave out --rules and --dashboard"),
    ("show merge good 1 --raw --json", "--json or --raw, not both"),
    ("dlq list merge --reasons --limit 7", "--limit is for a list: --reasons counts all of them"),
    ("lag merge builders --sql --max-lag 7", "--sql prints a statement and measures nothing"),
    ("archive --path /nowhere --interval 7", "interval is between the batches of a job that goes on: add --continuous"),
    ("analyze --path /nowhere --output /nowhere --no-live --url mysql://h/d", "--no-live reads the archive alone"),
]

# What only a program can say: the method of the administration, or of the client, and what it is called with.
BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("topic", ("mergge",), {}, "no topic 'mergge': did you mean 'merge'"),
    ("topic", ("a\nb",), {}, "topic must not"),
    ("groups", ("x",), {}, "no topic 'x': there are 'halted', 'merge', .*; `lanelog topics`"),
    ("members", ("merge", "x"), {}, "no group 'x' is registered for topic 'merge': there are 'builders'"),
    ("lanes", ("merge", "builder"), {}, "no group 'builder' .* did you mean 'builders'"),
    ("lanes", ("merge_dlq", "x"), {}, "no group 'x' is registered for topic 'merge_dlq': there is none"),
    ("lanes", WHERE, {"order_by": "size"}, "order_by must be one of 'age', 'lag', 'key', not 'size'"),
    ("topics", (), {"limit": True}, "limit must be an int"),
    ("offsets", ("merge",), {"limit": 10_001}, "limit must be an int of 1 to 10000, not 10001"),
    ("offsets", ("merge",), {"key": "goood"}, "topic 'merge' has no lane 'goood': .*did you mean 'good'"),
    ("leases", (), {"group": "x"}, "no topic has a group 'x'"),
    ("message", LANE, {}, "exactly one of id= and offset="),
    ("message", LANE, {"id": "a", "offset": 1}, "exactly one of id= and offset="),
    ("message", LANE, {"offset": 0}, "offset must be an int, 1 or more"),
    ("message", LANE, {"id": ""}, "id must have 1 to 255 characters"),
    ("messages", LANE, {"from_offset": -1}, "from_offset must be an int, 1 or more"),
    ("dead_letter_reasons", ("merge", " g"), {}, "group must not begin or end with white space"),
    *[
        (verb, WHERE, given, says)
        for verb in ("redrive", "delete_dead_letters")
        for given, says in (
            ({"all": 1}, "all must be True or False"),
            ({"ids": "dl-1"}, "a list of ids"),
            ({"ids": 5}, "a list of ids"),
            ({"ids": [1]}, "id must be a str"),
            ({"reason": 5}, "reason must be a str"),
        )
    ],
    ("redrive", ("merge", " a"), {"all": True}, "white space"),
    ("redrive", WHERE, {"all": True, "delay": -1}, "delay must be"),
    ("redrive", WHERE, {"all": True, "limit": 0}, "limit must be"),
    ("redrive", WHERE, {"all": True, "key": ""}, "key must have"),
    ("redrive", WHERE, {"all": True, "since": datetime(2026, 1, 1)}, "aware datetime"),  # noqa: DTZ001 - that is the point
    ("redrive", WHERE, {"all": True, "delay": "soon"}, "delay must be"),
    ("redrive", WHERE, {"all": True, "delay": 1e12}, "delay must be"),
    ("redrive", WHERE, {"all": True, "max_deliveries": 0}, "max_deliveries must be"),
    ("redrive", WHERE, {"all": True, "max_deliveries": 1.5}, "max_deliveries must be"),
    ("redrive", WHERE, {"all": True, "max_deliveries": True}, "max_deliveries must be"),
    ("redrive", WHERE, {"all": True, "max_deliveries": 2, "to_topic": "other"}, "is for group 'builders' alone"),
    *[
        (verb.method, verb.args, {**verb.options, "dry_run": decision}, "dry_run must be True or False")
        for verb in DECIDED.values()
        for decision in (None, 0, "no")
    ],
    ("seek", WHERE, {"to": "newest"}, "to must be"),
    ("seek", WHERE, {"to": None}, "to must be"),
    ("seek", WHERE, {"to": True, "key": "good"}, "to must be"),
    ("seek", WHERE, {"to": 3}, "give its key"),
    ("seek", WHERE, {"to": 0, "key": "good"}, "offsets begin at 1"),
    ("seek", WHERE, {"to": datetime(2026, 1, 1)}, "aware datetime"),  # noqa: DTZ001 - that is the point
    ("seek", WHERE, {"to": datetime(1969, 1, 1, tzinfo=UTC)}, "between the years"),
    ("seek", WHERE, {"to": "latest", "key": ""}, "key must have"),
    ("seek", ("merge ", "builders"), {"to": "latest"}, "white space"),
    ("pause", WHERE, {"reason": 5}, "reason must be a str"),
    ("pause", WHERE, {"reason": "\ud800"}, "surrogates"),
    ("resume", WHERE, {"key": " k"}, "white space"),
    ("skip", (*WHERE, "good", 4), {"reason": "x"}, "ends at offset 3"),
    ("skip", (*WHERE, "good", "1"), {"reason": "x"}, "offset must be"),
    ("skip", (*WHERE, "good", 1), {"reason": "  "}, "reason must have"),
    ("retry", (*WHERE, "good", 4), {}, "ends at offset 3"),
    ("retry", (*WHERE, "good", "1"), {}, "offset must be"),
    ("retry", (*WHERE, "good "), {}, "white space"),
    ("delete_group", ("merge", ""), {}, "group must have"),
    ("delete_topic", ("merge\n",), {}, "white space"),
    ("purge", ("merge",), {"before": datetime(2026, 1, 1)}, "aware datetime"),  # noqa: DTZ001 - that is the point
    ("purge", ("merge",), {"before": "yesterday"}, "before must be"),
    ("purge", ("merge",), {"before": 0}, "before must be"),
    ("purge", ("merge",), {"before": True}, "before must be"),
    ("maintain", (), {"topics": ["over", "nope"]}, "no topic 'nope'"),  # in the first there is something to collect
    ("maintain", (), {"topics": "over"}, "a list of topics"),
    ("maintain", (), {"topics": 5}, "a list of topics"),
    ("maintain", (), {"topics": ["over", 5]}, "topic must be a str"),
    ("scheduled", ("merge\n",), {}, "white space"),
    ("scheduled", (1,), {}, "topic must be a str"),
    ("scheduled", ("merge", ""), {}, "key must have"),
    ("scheduled", ("merge",), {"limit": 0}, "limit must be"),
    ("scheduled", ("merge",), {"limit": 10_001}, "limit must be"),
    ("cancel_scheduled", ("merge\n", "good", "x"), {}, "white space"),
    ("cancel_scheduled", ("merge", "", "x"), {}, "key must have"),
    ("cancel_scheduled", ("merge", "good", " x"), {}, "white space"),
    ("pause_schedule", ("nihgtly",), {}, "did you mean 'nightly'"),
    ("resume_schedule", ("nihgtly",), {}, "did you mean 'nightly'"),
    ("run_schedule", ("nihgtly",), {}, "did you mean 'nightly'"),
    ("run_schedule", ("nightly",), {"token": ""}, "token must be"),
    ("run_schedule", ("nightly",), {"token": "a@b"}, "token must be"),
    ("run_schedule", ("nightly",), {"token": "x" * 51}, "token must be"),
    ("run_schedule", ("nightly",), {"token": 5}, "token must be"),
    ("remove_schedule", ("nihgtly",), {}, "did you mean 'nightly'"),
    ("schedule", (), SCHEDULE | {"name": ""}, "the name of a schedule must have 1 to 200"),
    ("schedule", (), SCHEDULE | {"name": "x" * 256}, "1 to 200 characters"),
    ("schedule", (), SCHEDULE | {"name": " x"}, "white space"),
    ("schedule", (), SCHEDULE | {"name": 5}, "must be a str"),
    ("schedule", (), SCHEDULE | {"expression": "* * */20 * 1L"}, "never fires"),
    ("schedule", (), SCHEDULE | {"catch_up": None}, "catch_up must be one of latest, all, none"),
    ("schedule", (), SCHEDULE | {"topic": ""}, "topic must have"),
    ("schedule", (), SCHEDULE | {"key": "\n"}, "white space"),
    ("schedule", (), SCHEDULE | {"payload": object()}, "payload"),
    ("schedule", (), SCHEDULE | {"metadata": {"a": 1}}, "metadata"),
    ("schedule", (), SCHEDULE | {"ttl": 4e8}, "ttl must be"),
]


@pytest.fixture(scope="module")
def client(shop: str) -> Iterator[Client]:
    with lanelog.connect(shop) as client:
        yield client


@pytest.mark.parametrize(("line", "says"), [*MISNAMED, *WRONG])
def test_bad_input_is_refused_in_one_line(shop: str, root: Any, line: str, says: str) -> None:
    """A wrong topic, group, key, offset, time or option: what is wrong, exit status 2, nothing changed."""
    before = everything(root)
    assert says in Command(shop).refused(*shlex.split(line.format(letter="x")), stdin="x\n")
    assert everything(root) == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "args", "options", "says"), BAD, ids=[f"{method}-{says[:40]}" for method, *_, says in BAD]
)
def test_what_only_a_program_can_say_is_refused(
    client: Client, root: Any, method: str, args: tuple[Any, ...], options: dict[str, Any], says: str
) -> None:
    """ConfigurationError, one line, with the nearest name or those there are; nothing changed."""
    before = everything(root)
    called = getattr(client, method, None) or getattr(client.admin, method)
    if method in DECIDED:
        options = {"dry_run": False} | options
    with pytest.raises(ConfigurationError, match=says) as raised:
        called(*args, **options)
    assert "\n" not in str(raised.value)
    assert everything(root) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["publish", " merge", "good", "x"], "topic must not begin or end with white space"),
        (["publish", "merge", "", "x"], "key must have 1 to 255 characters"),
        (["publish", "m" * 256, "good", "x"], "topic must have 1 to 255"),
        (["publish", "merge", "good", "x", "--id", "a\nb"], "id must not contain control characters"),
        (["publish", "merge", "good", "x" * 1_048_577], "max_payload_bytes"),
        (["pause", "merge\x1b[31m", "builders"], "control characters"),
        (["dlq", "delete", "merge", "builders", "--id", "", "--execute"], "id must have"),
        (["schedule", "add", "x" * 201, "* * * * *", "merge", "good", "x"], "1 to 200 characters"),
    ],
)
def test_names_that_nothing_can_have_are_refused(shop: str, root: Any, arguments: list[str], says: str) -> None:
    """Before any SQL, without a control character on the terminal."""
    before = everything(root)
    line = Command(shop).refused(*arguments)
    assert says in line
    assert line.isprintable()
    assert everything(root) == before


def test_a_line_that_is_too_long_publishes_nothing(shop: str, root: Any) -> None:
    """When nothing was published before it, it is a refusal."""
    before = everything(root)
    assert "max_payload_bytes" in Command(shop).refused("publish", "merge", "good", stdin=b"y" * 2_000_000)
    assert everything(root) == before


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://root:{PASSWORD}@127.0.0.1:1/jobs",
        f"mysql://root:{PASSWORD}/127.0.0.1",
        f"postgres://root:{PASSWORD}@127.0.0.1/jobs",
        None,
    ],
    ids=["unreachable", "ambiguous", "another scheme", "none"],
)
def test_no_database_is_one_line(url: str | None) -> None:
    """No server, no URL, no such URL: every verb refuses in one line that shows no password."""
    for line in (*LINES, "doctor", "migrate"):
        assert PASSWORD not in Command(url).refused(*shlex.split(line.format(letter="x")), stdin="x\n")


def test_missing_tables_say_how_to_make_them(empty_url: str) -> None:
    """Every verb that needs them names the command; doctor finds it, too."""
    command = Command(empty_url)
    for line in LINES:
        assert "lanelog migrate" in command.refused(*shlex.split(line.format(letter="x")), stdin="x\n")
    found = command("doctor", "--json", status=1)
    assert "lanelog migrate" in found.stdout
    assert found.stderr == "1 error: schema\n"
