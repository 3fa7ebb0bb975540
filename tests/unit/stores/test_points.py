"""One statement for many keys: how it is cut into several, and where its arguments go."""

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from lanelog._database import Lock
from lanelog._stores import _points
from lanelog._stores._points import chunked, for_groups, points, united, write


@define
class Sent:
    """An executor that keeps what it was sent. A query answers with its number of arguments."""

    statements: list[tuple[str, tuple[object, ...]]] = field(factory=list)

    def execute(self, sql: str, args: Sequence[object] = ()) -> int:
        self.statements.append((sql, tuple(args)))
        return len(args)

    def query(self, sql: str, args: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return [(self.execute(sql, args),)]

    def one(self, sql: str, args: Sequence[object] = ()) -> tuple[Any, ...] | None:
        return self.query(sql, args)[0]


def test_keys_and_points_stand_between_the_other_arguments() -> None:
    """`before` and `after` keep their places, and points are laid flat."""
    sent = Sent()
    points(sent, "a = %s AND k IN ({keys}) AND b = %s", ["x", "y"], before=[1], after=[2])
    points(sent, "(k, o) IN ({points}){lock}", [("x", 1), ("y", 2)], lock=Lock.FREE)
    write(sent, "FROM ({exact}) AS exact WHERE a = %s", [("x", 0)], after=[9])
    write(sent, "VALUES {rows}", [("x", 1), ("y", 2)], row="(%s, %s, now)")
    assert sent.statements == [
        ("a = %s AND k IN (%s,%s) AND b = %s", (1, "x", "y", 2)),
        ("(k, o) IN ((%s, %s),(%s, %s)) FOR UPDATE SKIP LOCKED", ("x", 1, "y", 2)),
        ("FROM (SELECT %s AS k, %s AS o) AS exact WHERE a = %s", ("x", 0, 9)),
        ("VALUES (%s, %s, now),(%s, %s, now)", ("x", 1, "y", 2)),
    ]


def test_nothing_is_sent_for_no_keys() -> None:
    """`IN ()` is no SQL."""
    sent = Sent()
    assert points(sent, "{keys}", []) == united(sent, "one", []) == for_groups(sent, "{keys}", "t", []) == []
    assert write(sent, "{exact}", []) == 0
    assert not sent.statements


def test_a_statement_has_so_many_keys_and_characters_at_most() -> None:
    """The answers of all parts are put together, in order, and the counts are added up."""
    sent = Sent()
    keys = [str(n) for n in range(2 * _points.MAX_POINTS + 1)]
    assert points(sent, "{keys}", keys) == [(_points.MAX_POINTS,), (_points.MAX_POINTS,), (1,)]
    assert [arg for _, args in sent.statements for arg in args] == keys
    assert write(sent, "{rows}", [(key, 0) for key in keys], row="%s", size=500) == 2 * len(keys)
    long = "k" * (_points.MAX_CHARACTERS // 2)
    assert [len(chunk) for chunk in chunked([long, long, long])] == [2, 1]
    assert [len(chunk) for chunk in chunked([("topic", long, 1), ("topic", long, 2)])] == [1, 1]


def test_a_query_for_several_groups_names_each_with_its_own_keys() -> None:
    """One SELECT a group, joined by UNION ALL."""
    sent = Sent()
    for_groups(sent, "g = %s AND t = %s AND k IN ({keys})", "t", [("g", "a"), ("h", "a"), ("g", "b")])
    for_groups(sent, "g = %s AND t = %s AND p IN ({points})", "t", [("g", "a", 1)])
    united(sent, "(k = %s)", [("a",), ("b",)])
    assert sent.statements == [
        (
            "(g = %s AND t = %s AND k IN (%s,%s)) UNION ALL (g = %s AND t = %s AND k IN (%s))",
            ("g", "t", "a", "b", "h", "t", "a"),
        ),
        ("(g = %s AND t = %s AND p IN ((%s, %s)))", ("g", "t", "a", 1)),
        ("(k = %s) UNION ALL (k = %s)", ("a", "b")),
    ]
