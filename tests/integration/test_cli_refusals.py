"""What every verb does with bad input, missing privileges and no database: one line, exit status 2, nothing changed."""

import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

import lanelog
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from support.cli import Command, everything
from support.sql import rows
from support.waiting import eventually

PASSWORD = "pw" + secrets.token_hex(8)

# Every verb that names something, with everything that it can name wrongly, and what the refusal must say.
WRONG: list[tuple[str, str]] = [
    ("topics --limit 0", "limit must be an int of 1 to 10000"),
    ("topics --limit many", "'many' is not a valid integer; see `lanelog topics --help`"),
    ("topics merge", "unexpected extra argument"),
    ("groups nope", "no topic 'nope': "),
    ("groups --max-lag -1", "--max-lag"),
    ("groups --watch --max-lag 1", "--watch"),
    ("members nope builders", "no topic 'nope'"),
    ("members merge nope", "no group 'nope' is registered for topic 'merge'"),
    ("members merge", "Missing argument 'GROUP'"),
    ("lanes nope builders", "no topic 'nope'"),
    ("lanes merge nope", "no group 'nope'"),
    ("lanes merge builders --by size", "'size' is not one of"),
    ("lanes merge builders --limit 10001", "limit must be"),
    ("lag nope", "no topic 'nope'"),
    ("lag merge nope", "no group 'nope'"),
    ("lag merge builders --max-age soon", "--max-age"),
    ("offsets nope", "no topic 'nope'"),
    ("offsets merge nope", "no group 'nope'"),
    ("offsets merge --key nope", "no lane 'nope'"),
    ("leases nope", "no topic 'nope'"),
    ("leases merge nope", "no group 'nope'"),
    ("show nope good", "no topic 'nope'"),
    ("show merge nope", "no lane 'nope'"),
    ("show merge good 99", "no message with offset 99"),
    ("show merge good 0", "offsets begin at 1"),
    ("show merge good x", "'x' is not a valid integer"),
    ("show merge good --id nope", "no message with id 'nope'"),
    ("show merge good 1 --id nope", "one of"),
    ("show merge good --raw", "--raw is for one message"),
    ("show merge good 1 --from 1", "--from is for a list"),
    ("tail nope good", "no topic 'nope'"),
    ("tail nope --follow", "no topic 'nope'"),
    ("tail merge nope", "no lane 'nope'"),
    ("tail merge", "without KEY"),
    ("publish merge good x --metadata nonsense", "write NAME=VALUE"),
    ("publish merge good x --file -", "not both"),
    ("publish merge good --file /nonexistent", "No such file"),
    ("publish merge good --id a --file -", "--id is for one MESSAGE"),
    ("publish merge", "Missing argument 'KEY'"),
    ("dlq list nope", "no topic 'nope'"),
    ("dlq list merge nope", "no group 'nope'"),
    ("dlq list merge --reasons --limit x", "--limit"),
    ("dlq show nope bad 1", "no topic 'nope'"),
    ("dlq show merge nope x", "no dead letter 'x' in lane 'nope'"),
    ("dlq show merge bad nope", "no dead letter 'nope'"),
    ("dlq redrive nope builders --all --execute", "no topic 'nope'"),
    ("dlq redrive merge nope --all --execute", "no group 'nope'"),
    ("dlq redrive merge builders --execute", "exactly one of --id, --reason and --all"),
    ("dlq redrive merge builders --all --id x --execute", "exactly one of"),
    ("dlq redrive merge builders --all --rate 0 --execute", "rate"),
    ("dlq delete nope builders --all --execute", "no topic 'nope'"),
    ("dlq delete merge nope --all --execute", "no group 'nope'"),
    ("dlq delete merge builders --execute", "exactly one of"),
    ("dlq nope", "No such command 'nope'"),
    ("seek nope builders --to earliest --execute", "no topic 'nope'"),
    ("seek merge nope --to earliest --execute", "no group 'nope'"),
    ("seek merge builders --key nope --to earliest --execute", "no lane 'nope'"),
    ("seek merge builders --key good --to 0 --execute", "offsets begin at 1"),
    ("seek merge builders --key good --to -1 --execute", "offsets begin at 1"),
    ("seek merge builders --to 1 --execute", "an offset is a place in one lane"),
    ("seek merge builders --to 2026-01-31T12:00:00 --execute", "no time zone: write 2026-01-31T12:00:00Z"),
    ("seek merge builders --to 2026-01-31T12:00:00+99:00 --execute", "cannot seek to"),
    ("seek merge builders --to 2026-02-30T12:00:00Z --execute", "cannot seek to"),
    ("seek merge builders --to 1969-01-01T00:00:00Z --execute", "1970"),
    ("seek merge builders --to yesterday --execute", "cannot seek to 'yesterday'"),
    ("seek merge builders --execute", "Missing option '--to'"),
    ("pause nope builders", "no topic 'nope'"),
    ("pause merge nope", "no group 'nope'"),
    ("pause merge builders --key nope", "no lane 'nope'"),
    (f"pause merge builders --by {'x' * 256}", "255"),
    ("resume nope builders", "no topic 'nope'"),
    ("resume merge nope", "no group 'nope'"),
    ("resume merge builders --key nope", "no lane 'nope'"),
    ("skip nope builders good 1 --reason x --execute", "no topic 'nope'"),
    ("skip merge nope good 1 --reason x --execute", "no group 'nope'"),
    ("skip merge builders nope 1 --reason x --execute", "no lane 'nope'"),
    ("skip merge builders good 0 --reason x --execute", "offset must be"),
    ("skip merge builders good 99 --reason x --execute", "there is no message 99"),
    ("skip merge builders good one --reason x --execute", "'one' is not a valid integer"),
    ("skip merge builders good 1 --execute", "Missing option '--reason'"),
    ("release nope builders good --execute", "no topic 'nope'"),
    ("release merge nope good --execute", "no group 'nope'"),
    ("release merge builders nope --execute", "no lane 'nope'"),
    ("delete-group nope builders --execute", "no topic 'nope'"),
    ("delete-group merge nope --execute", "no group 'nope'"),
    ("delete-topic nope --execute", "no topic 'nope'"),
    ("purge nope --before 2026-01-31T12:00:00Z --execute", "no topic 'nope'"),
    ("purge merge --before 2026-01-31T12:00:00 --execute", "no time zone"),
    ("purge merge --before 2026-01-31T12:00:00+24:00 --execute", "cannot purge before"),
    ("purge merge --before 2026 --execute", "cannot purge before '2026'"),
    ("purge merge --before-offset 0 --execute", "offsets begin at 1"),
    ("purge merge --execute", "exactly one of --before and --before-offset"),
    ("maintain nope --once", "no topic 'nope'"),
    ("status --max-age -1", "--max-age"),
    ("doctor now", "unexpected extra argument"),
    ("migrate now", "unexpected extra argument"),
    ("nope", "No such command 'nope'"),
    ("--nope", "No such option"),
]

# Every verb that looks, and every one that changes, rightly used.
LOOKS = (
    "status",
    "topics",
    "groups",
    "groups merge",
    "members merge builders",
    "lanes merge builders",
    "lag",
    "lag merge builders",
    "offsets merge",
    "leases",
    "show merge good",
    "show merge good 1",
    "tail merge good",
    "dlq list merge",
    "dlq list merge --reasons",
    "dlq show merge bad {letter}",
)
CHANGES = (
    "publish merge good x",
    "publish merge good",  # lines of standard input
    "publish merge new x",
    "dlq redrive merge builders --all --execute",
    "dlq delete merge builders --all --execute",
    "seek merge builders --to earliest --execute",
    "pause merge builders",
    "pause merge builders --key good",
    "resume merge builders --key paused",
    "skip merge builders good 2 --reason x --execute",
    "release merge builders good --execute",
    "delete-group merge builders --execute",
    "delete-topic merge --execute",
    "purge merge --before-offset 2 --execute",
)


@pytest.fixture(scope="module")
def shop(lanelog_server: DevServer) -> Iterator[str]:
    """URL of a database that nobody changes: lanes `good`, whose owner is gone, `bad`, dead-lettered, and `paused`."""
    name = f"cli_{secrets.token_hex(4)}"
    url = lanelog_server.create_database(name)

    def handle(message: lanelog.Message) -> None:
        if message.key == "bad":
            raise lanelog.Reject("no such branch")

    with lanelog.connect(url) as client:
        client.migrate()
        client.publish_many("merge", [("good", b"1"), ("bad", b"1"), ("paused", b"1")])
        with client.subscribe("merge", "builders", handle):
            eventually(lambda: client.admin.groups("merge")[0].lag == 0)
        client.admin.pause("merge", "builders", key="paused", by="ann", reason="looking")
        client.publish("merge", "good", b"2")
    with closing(connect(url)) as connection:  # a worker that is gone
        rows(connection, "UPDATE queue_partition_leases SET leased_by = 'gone:1' WHERE partition_key = 'good'")
    yield url
    lanelog_server.drop_database(name)


@pytest.fixture(scope="module")
def root(shop: str) -> Iterator[Any]:
    """A connection past the library."""
    with closing(connect(shop)) as connection:
        yield connection


def connect(url: str) -> Any:
    config = ConnectConfig.from_url(url)
    names = ("host", "port", "unix_socket", "user", "password", "database")
    return pymysql.connect(**{name: getattr(config, name) for name in names}, autocommit=True)


@pytest.fixture(scope="module")
def accounts(shop: str, root: Any) -> Iterator[dict[str, str]]:
    """URLs of a `reader`, who may look at everything, and of `nobody`, who sees that the tables are there."""
    config = ConnectConfig.from_url(shop)
    mark = secrets.token_hex(4)
    grants = {"reader": "SELECT", "nobody": "INSERT"}
    for name, privilege in grants.items():
        rows(root, f"CREATE USER '{name}_{mark}'@'%%' IDENTIFIED BY %s", PASSWORD)
        rows(root, f"GRANT {privilege} ON `{config.database}`.* TO '{name}_{mark}'@'%'")
    yield {
        name: f"mysql://{name}_{mark}:{PASSWORD}@{config.host}:{config.port}/{config.database}"
        + (f"?unix_socket={config.unix_socket}" if config.unix_socket else "")
        for name in grants
    }
    for name in grants:
        rows(root, f"DROP USER '{name}_{mark}'@'%'")


@pytest.mark.parametrize(("line", "says"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_bad_input_is_refused_in_one_line(shop: str, root: Any, line: str, says: str) -> None:
    """A wrong topic, group, key, offset, time or option: what is wrong, exit status 2, nothing changed."""
    before = everything(root)
    assert says in Command(shop).refused(*line.split(), stdin="x\n")
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


@pytest.mark.parametrize("line", CHANGES)
def test_without_the_privilege_nothing_changes(accounts: dict[str, str], root: Any, line: str) -> None:
    """Who may only read is told which privilege is missing."""
    before = everything(root)
    text = Command(accounts["reader"]).refused(*line.split(), stdin="x\n")
    assert "denied" in text
    assert PASSWORD not in text
    assert everything(root) == before


@pytest.mark.parametrize("line", LOOKS)
def test_a_reader_may_look(accounts: dict[str, str], line: str) -> None:
    """SELECT is enough for every verb that looks."""
    command = Command(accounts["reader"])
    letter = command.json("dlq", "list", "merge")[0]["id"]
    assert command(*line.format(letter=letter).split()).stdout


@pytest.mark.parametrize("line", LOOKS)
def test_who_may_not_look_is_told_so(accounts: dict[str, str], line: str) -> None:
    """Also who may do something else with the tables."""
    text = Command(accounts["nobody"]).refused(*line.format(letter="x").split())
    assert "denied" in text
    assert PASSWORD not in text


@pytest.mark.parametrize("line", [*LOOKS, *CHANGES, "doctor", "migrate", "maintain --once"])
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
def test_no_database_is_one_line(line: str, url: str | None) -> None:
    """No server, no URL, no such URL: every verb refuses in one line that shows no password."""
    assert PASSWORD not in Command(url).refused(*line.format(letter="x").split(), stdin="x\n")


def test_a_wrong_password_is_not_printed(accounts: dict[str, str]) -> None:
    """The server's refusal names the account, not the password."""
    url = accounts["reader"].replace(PASSWORD, "wr0ng-s3cret")
    assert "s3cret" not in Command(url).refused("topics")
    finding = Command(url).refused("doctor")
    assert "check user and password" in finding
    assert "s3cret" not in finding


def test_missing_tables_say_how_to_make_them(lanelog_server: DevServer) -> None:
    """Every verb that needs them names the command; doctor finds it, too."""
    name = f"cli_{secrets.token_hex(4)}"
    command = Command(lanelog_server.create_database(name))
    try:
        for line in (*LOOKS, *CHANGES, "maintain --once"):
            assert "lanelog migrate" in command.refused(*line.format(letter="x").split(), stdin="x\n")
        found = command("doctor", "--json", status=1)
        assert "lanelog migrate" in found.stdout
        assert found.stderr == "1 error: schema\n"
    finally:
        lanelog_server.drop_database(name)
