"""Offsets, duplicates and ids of drafts, before anything is sent."""

import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog._database.pool.naming import named
from lanelog._database.server.server_facts import ServerFacts
from lanelog._log.append.draft import Draft, make_draft, new_id
from lanelog._log.append.writing import give_offsets, note_attempt
from lanelog._stores.log import messages
from lanelog._stores.log.messages import INSERT, NewMessage, as_sql, largest_row, wire_bytes
from lanelog.errors import ConfigurationError, DatabaseError
from lanelog.message import Outgoing, Receipt


def draft(key: str, message_id: str | None = None) -> Draft:
    return make_draft("t", Outgoing(key, b"x", message_id), None, 10)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "1", "2", "3"])), max_size=30),
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.sampled_from("123")), st.integers(1, 9)),
)
def test_offsets_are_dense_and_duplicates_take_none(
    wanted: list[tuple[str, str]], stored: dict[tuple[str, str], int]
) -> None:
    """In one transaction of any messages, rows follow the heads without a hole, and each id is there once."""
    heads = {"a": 10, "b": 20, "c": 30}
    drafts = [draft(key, message_id or None) for key, message_id in wanted]
    plan = give_offsets(drafts, heads, stored)
    for key, head in heads.items():
        offsets = [row.offset for row in plan.rows if row.key == key]
        assert offsets == list(range(head + 1, head + 1 + plan.moves.get(key, 0)))
    ids = [(row.key, row.id) for row in plan.rows]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & stored.keys()
    known = {**stored, **{(row.key, row.id): row.offset for row in plan.rows}}
    assert [known[one.key_and_id] for one in drafts] == [receipt.offset for receipt in plan.receipts]
    assert len(drafts) - len(plan.rows) == sum(receipt.duplicate for receipt in plan.receipts)


def test_what_an_unknown_commit_stored_is_no_duplicate() -> None:
    """Found at the offset it was given: it is our own. Found elsewhere: somebody was there before."""
    own, foreign, generated = draft("k", "a"), draft("k", "b"), draft("k")
    receipts = [Receipt(7, "a", duplicate=False), Receipt(8, "b", duplicate=False), Receipt(9, "c", duplicate=False)]
    note_attempt([own, foreign, generated], receipts, DatabaseError("lost", outcome_unknown=True), 1.0)
    assert all(one.needs_lookup for one in (own, foreign, generated))
    stored = {own.key_and_id: 7, foreign.key_and_id: 3, generated.key_and_id: 9}
    placed = give_offsets([own, foreign, generated], {"k": 9}, stored)
    assert [receipt.duplicate for receipt in placed.receipts] == [False, True, False]
    assert placed.rows == []


def test_a_known_failure_proves_nothing_about_an_offset() -> None:
    """After a plain rollback somebody else may have taken id and offset."""
    one = draft("k", "a")
    note_attempt([one], [Receipt(7, "a", duplicate=False)], DatabaseError("deadlock", retriable=True), 1.0)
    assert give_offsets([one], {"k": 7}, {one.key_and_id: 7}).receipts[0].duplicate
    assert one.unknown_since is None


def test_an_unknown_outcome_is_as_old_as_the_first_attempt_that_may_have_stored_it() -> None:
    """A later one does not renew it; an interrupted COMMIT is one, too; what was a duplicate then is known."""
    for error in (DatabaseError("lost", outcome_unknown=True), KeyboardInterrupt()):
        own, foreign = draft("k", "a"), draft("k", "b")
        receipts = [Receipt(7, "a", duplicate=False), Receipt(3, "b", duplicate=True)]
        note_attempt([own, foreign], [], DatabaseError("lock time-out", retriable=True), 1.0)
        note_attempt([own, foreign], receipts, error, 2.0)
        note_attempt([own, foreign], receipts, error, 3.0)
        assert (own.unknown_since, foreign.unknown_since) == (2.0, None)


def test_generated_ids_never_repeat() -> None:
    """Eight threads at once: all different, 32 hexadecimal digits; a later millisecond sorts after an earlier one."""
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(new_id() for _ in range(500))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4000
    assert {len(one) for one in found} == {32}
    times = [new_id()[:12] for _ in range(500)]
    assert times == sorted(times)


NAMES = st.one_of(
    st.text(max_size=20),
    st.text("aZ09_.:/-", max_size=20),
    st.text("a%'\\`\"é ", max_size=3),
    st.sampled_from(["queue_messages", "a\n"]),
)


class Sent:
    """An Executor that answers nothing, and keeps what it is to send."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, list[object]]] = []

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        self.statements.append((sql, list(args)))
        return 1

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        raise NotImplementedError


@given(NAMES, st.binary(max_size=50), st.one_of(st.none(), NAMES), st.sampled_from([0, 10**12]))
def test_the_size_on_the_wire_is_never_underestimated(
    text: str, payload: bytes, metadata: str | None, ttl_ms: int
) -> None:
    """A row that is expected to fit fits: text is escaped, payloads travel as hex."""
    from pymysql.converters import escape_string

    sent = Sent()
    messages.insert(sent, text, [NewMessage(text, 2**64 - 1, text, payload, metadata, ttl_ms)], 10**6)
    ((sql, args),) = sent.statements
    filled = sql % tuple(f"'{escape_string(str(value))}'" for value in args) if args else sql
    size = wire_bytes(text, text, text, len(payload), metadata)
    assert len(filled.encode(errors="surrogateescape")) - len(INSERT) <= size
    assert largest_row(10_000) + len(INSERT) < 10_000


@given(NAMES)
def test_only_a_plain_text_becomes_part_of_a_statement(text: str) -> None:
    """A text with a quote, a backslash, a per cent sign or another special character is sent by the driver."""
    args: list[str] = []
    sql = as_sql(text, args)
    if sql == "%s":
        assert args == [text]
    else:
        assert (sql, args) == (f"'{text}'", [])
        assert re.fullmatch(r"[A-Za-z0-9_.:/-]+", text, re.ASCII)
        assert named(sql, "d", args) == sql


@given(st.lists(st.tuples(NAMES, st.binary(max_size=50)), min_size=1, max_size=30))
def test_an_insert_is_cut_into_statements_that_fit(texts: list[tuple[str, bytes]]) -> None:
    """Each has the arguments of its own rows, in their order."""
    rows = [NewMessage(text, at, f"i{at}", payload, "{}") for at, (text, payload) in enumerate(texts)]
    whole, cut = Sent(), Sent()
    messages.insert(whole, "t", rows, 10**6)
    messages.insert(cut, "t", rows, 2500)
    ((sql, args),) = whole.statements
    assert ",".join(sql.removeprefix(INSERT) for sql, _ in cut.statements) == sql.removeprefix(INSERT)
    assert [value for _, part in cut.statements for value in part] == args
    assert all(sql.count("%s") == len(part) for sql, part in cut.statements)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=50)), min_size=1, max_size=30))
def test_an_insert_for_a_packet_fits_or_there_is_none(texts: list[tuple[str, bytes]]) -> None:
    """A single row above the limit has none either: it goes by itself, and the server decides."""
    rows = [NewMessage(text, at, f"i{at}", payload, "{}") for at, (text, payload) in enumerate(texts)]
    whole = messages.insert_noted("t", rows, 10**6)
    assert whole is not None
    assert messages.insert_noted("t", rows, messages.longest(whole)) == whole
    assert messages.insert_noted("t", rows, messages.longest(whole) - 1) is None
    assert messages.insert_noted("t", rows * 1001, 10**9) is None


@pytest.mark.parametrize(
    ("text", "version", "family", "supported"),
    [
        ("10.11.19-MariaDB-0+deb12u1", (10, 11, 19), "mariadb", True),
        ("11.4.2-MariaDB-ubu2404-log", (11, 4, 2), "mariadb", True),
        ("10.5.9-MariaDB", (10, 5, 9), "mariadb", False),
        ("8.0.36-0ubuntu0.22.04.1", (8, 0, 36), "mysql", True),
        ("9.7.4", (9, 7, 4), "mysql", True),
        ("26.10.0-cloud", (26, 10, 0), "mysql", True),
        ("5.7.44-log", (5, 7, 44), "mysql", False),
    ],
)
def test_servers_are_distinguished(text: str, version: tuple[int, ...], family: str, *, supported: bool) -> None:
    """By the version as numbers, so that 26.10 is newer than 8.0; what is too old is refused by name."""
    facts = ServerFacts.from_row((text, 1, 1, "q", "one"))
    assert (facts.version, facts.family) == (version, family)
    if supported:
        facts.check()
    else:
        with pytest.raises(ConfigurationError, match="too old"):
            facts.check()
