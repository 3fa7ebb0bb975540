"""Every verb of administration with an account that lacks a privilege it needs: one clear line, and nothing changed.

In Python and on the command line. What a verb writes is listed table by table, and each of these tables is taken from
an account that may do everything else: a verb of several steps must not have done the first of them.
"""

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lanelog
from lanelog import DatabaseError
from lanelog.admin import Admin
from support.accounts import PASSWORD, account
from support.cli import Command, everything
from support.shop import CHANGES, LOOKS, Verb
from support.sql import rows

WRITES = "INSERT, UPDATE, DELETE"
NO_DATABASE = {"preview_schedule", "acting"}
FINDINGS = {"doctor"}
"""It says what is missing as a finding, see test_cli_doctor."""
TIMELESS = {"topic", "heads", "message", "messages", "dead_letters", "dead_letter_reasons", "schedules"}
"""What does not tell how long something has been going on: the same at any moment."""


def test_every_verb_is_here() -> None:
    """A method of administration that is in neither list would be untested."""
    public = {name for name in dir(Admin) if not name.startswith("_")}
    assert {verb.method for verb in (*LOOKS, *CHANGES)} - {""} == public - NO_DATABASE - FINDINGS


@pytest.fixture(scope="module")
def accounts(shop: str, root: Any) -> Iterator[dict[str, str]]:
    """URLs by what they may not write, beside `reader`, who may look, and `nobody`, who sees that there are tables."""
    tables = [table for (table,) in rows(root, "SHOW TABLES")]
    grants = {"reader": {"*": "SELECT"}, "nobody": {"*": "INSERT"}}
    for table in {table for verb in CHANGES for table in verb.writes}:
        grants[table] = {"*": "SELECT"} | {other: WRITES for other in tables if other != table}
    with ExitStack() as stack:
        yield {name: stack.enter_context(account(root, shop, granted)) for name, granted in grants.items()}


def call(url: str, verb: Verb) -> Any:
    with lanelog.connect(url) as client:
        return getattr(client.admin, verb.method)(*verb.args, **verb.options)


def assert_refused(url: str, verb: Verb, says: str) -> None:
    """In Python by an exception that is not worth a repetition, in a terminal by one line and exit status 2."""
    texts = []
    if verb.method:
        with pytest.raises(DatabaseError) as raised:
            call(url, verb)
        assert not raised.value.retriable
        texts.append(str(raised.value))
    if verb.line:
        texts.append(Command(url).refused(*shlex.split(verb.line.format(letter="x")), stdin="x\n"))
    for text in texts:
        assert "denied" in text
        assert says in text
        assert len(text.splitlines()) == 1
        assert PASSWORD not in text


@pytest.mark.parametrize("verb", LOOKS, ids=str)
def test_a_reader_sees_everything_and_others_are_refused(accounts: dict[str, str], shop: str, verb: Verb) -> None:
    """SELECT, README's role `reader`, is enough; without it, also who may do something else with the tables."""
    if verb.method:
        seen = call(accounts["reader"], verb)
        if verb.method in TIMELESS:
            assert seen == call(shop, verb)
    if verb.line:
        command = Command(accounts["reader"])
        letter = command.json("dlq", "list", "merge")[0]["id"]
        assert command(*shlex.split(verb.line.format(letter=letter))).stdout
    assert_refused(accounts["nobody"], verb, "")


@pytest.mark.parametrize(
    ("verb", "table"), [pytest.param(verb, table, id=f"{verb}-{table}") for verb in CHANGES for table in verb.writes]
)
def test_who_may_not_write_changes_nothing(accounts: dict[str, str], root: Any, verb: Verb, table: str) -> None:
    """Whichever of the tables it is that the verb writes: the first step, too, is not taken or is taken back."""
    before = everything(root)
    assert_refused(accounts[table], verb, table)
    assert everything(root) == before


def test_a_wrong_password_is_not_printed(accounts: dict[str, str]) -> None:
    """The server's refusal names the account, not the password; doctor says what to check."""
    command = Command(accounts["reader"].replace(PASSWORD, "wr0ng-s3cret"))
    assert "s3cret" not in command.refused("topics")
    finding = command.refused("doctor")
    assert "check user and password" in finding
    assert "s3cret" not in finding
