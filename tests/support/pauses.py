"""Transactions that stop at a named point: which statements have which names, and how a process stops at them.

It never changes what a statement does, and nothing of it is in the library. `programs/actor.py` installs it in a
process of its own; the tests of interleavings arm points there (`support/stage.py`) and let others run meanwhile.

A point is text, `before` or `after` something that one connection sends:

* `after leases.FENCE`: the constant `FENCE` of `lanelog/_stores/members/leases.py` was executed;
* `after offsets.SHARE_FLOORS`: the constant `FLOORS` was, with a shared lock, see `LOCKS`;
* `before COMMIT following flushes.FLUSH`: the transaction in which that statement was executed is about to commit;
* `before RECLAIM`: a block of user code is through, and nothing that comes behind it was sent.

A point stops the first connection that comes there after it was armed, once.
"""

import importlib
import pkgutil
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field, frozen

import lanelog._stores
from lanelog._database import Lock, Statement
from lanelog._database.connection.wire import Wire
from lanelog._stores.members import leases

COMMIT = "COMMIT"
RECLAIM = "RECLAIM"
IN_THE_BLOCK = "in the block"
"""Where a caller's transaction stops: its user's own code, after what it published."""

LONG_PAUSE = "SET SESSION wait_timeout = 120"  # the server would end a session that is silent for 15 s
_BLANK = re.compile(r"(?<!\{)\{[a-z]+\}")
_DATABASE = re.compile(r"`[^`]+`\.(?=queue_)")  # stands before tables where user code may have said USE
_SQL = re.compile(r"\s*\(?\s*(SELECT|INSERT|UPDATE|DELETE|SET)\b")
_ENGINE = ("lanelog._engine.handler_transaction", "lanelog._engine.leasing.keeper", "lanelog._engine.fetching.gaps")


LOCKS = {"": Lock.NONE, "SHARE_": Lock.SHARE, "LOCK_": Lock.UPDATE, "TRY_LOCK_": Lock.FREE}
"""What stands before a constant's name, for each mode in which its statement locks."""


def rendered(constant: str, text: str) -> Iterator[tuple[str, str]]:
    """The names and texts of a constant: one, or if it has `{lock}` one for each mode."""
    if "{lock}" not in text:
        yield constant, text
    else:
        yield from ((begin + constant, text.replace("{lock}", lock)) for begin, lock in LOCKS.items())


@cache
def statements() -> dict[str, re.Pattern[str]]:
    """What each constant's statements begin with, by name."""
    modules = [found.name for found in pkgutil.walk_packages(lanelog._stores.__path__, "lanelog._stores.")]
    named = {}
    for module in (*modules, *_ENGINE):
        for constant, text in vars(importlib.import_module(module)).items():
            if constant.isupper() and not constant.startswith("_") and isinstance(text, str) and _SQL.match(text):
                for name, each in rendered(constant, text):
                    parts = [re.escape(part.replace("{{", "{").replace("}}", "}")) for part in _BLANK.split(each)]
                    named[f"{module.rpartition('.')[2]}.{name}"] = re.compile(".*".join(parts), re.DOTALL)
    return named


@lru_cache(4096)
def name_of(sql: str) -> str:
    """The constant that a statement was made of, the most specific one; else its own text."""
    sql = _DATABASE.sub("", sql)
    fitting = [(len(pattern.pattern), name) for name, pattern in statements().items() if pattern.match(sql)]
    return max(fitting)[1] if fitting else " ".join(sql.split())


@frozen
class Point:
    """Before or after what, and what the same transaction must have executed before."""

    before: bool
    what: str
    following: str = ""

    @classmethod
    def parse(cls, text: str) -> "Point":
        """From text; ValueError for what no connection can ever come to."""
        when, _, rest = text.partition(" ")
        what, _, following = rest.partition(" following ")
        for name in filter(None, (what, following)):
            if re.fullmatch(r"[a-z_]+\.[A-Z_]+", name) and name not in statements():
                raise ValueError(f"there is no statement {name}")
        if when not in ("before", "after") or not what:
            raise ValueError(f"not a point: {text!r}")
        return cls(when == "before", what, following)


@define
class _Transaction:
    """What a connection has executed since its last COMMIT, and with which texts."""

    names: set[str] = field(factory=set)
    words: set[str] = field(factory=set)


@define
class _Armed:
    point: Point
    containing: frozenset[str]
    go: threading.Event = field(factory=threading.Event)
    reached: bool = False

    def fits(self, *, before: bool, what: str, sent: _Transaction) -> bool:
        point = self.point
        if self.reached or (point.before, point.what) != (before, what):
            return False
        return (not point.following or point.following in sent.names) and self.containing <= sent.words


class Pauses:
    """The armed points of one process, its connections wrapped once and for all."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._armed: dict[str, _Armed] = {}
        self._open: WeakKeyDictionary[Wire, _Transaction] = WeakKeyDictionary()

    def arm(self, text: str, containing: Sequence[str] = ()) -> None:
        """Stop there, once the transaction's statements have had all of `containing` among their arguments."""
        with self._lock:
            self._armed[text] = _Armed(Point.parse(text), frozenset(containing))

    def go(self, text: str) -> None:
        """Let go who is stopped there, or will be."""
        with self._lock:
            armed = self._armed.get(text)
        if armed is not None:
            armed.reached = True
            armed.go.set()

    def stop_here(self, text: str) -> None:
        """Stop in code that is no statement."""
        armed = _Armed(Point(before=False, what=text), frozenset(), reached=True)
        with self._lock:
            self._armed[text] = armed
        self._say("paused", point=text)
        armed.go.wait()

    def install(self) -> None:  # noqa: C901 - one small function for each method that it wraps
        """Wrap every connection of this process."""
        begin, run, commit, rollback = Wire.begin, Wire._run, Wire.commit, Wire.rollback
        reclaim, commit_with = Wire.reclaim, Wire.commit_with
        pauses = self

        def paused_run(wire: Wire, sql: str, args: Sequence[object], *before: Sequence[str]) -> Any:
            name = name_of(sql)
            if name == "flushes.FLUSH_FENCED":
                return flush_in_steps(wire, sql, args)
            return one(wire, name, sql, args, *before)

        def one(wire: Wire, name: str, sql: str, args: Sequence[object], *before: Sequence[str]) -> Any:
            sent = pauses._transaction(wire)
            sent.words.update(value for value in args if isinstance(value, str))
            pauses._meet(wire, run, before=True, what=name, sent=sent)
            result = run(wire, sql, args, *before)
            sent.names.add(name)
            pauses._meet(wire, run, before=False, what=name, sent=sent)
            return result

        def flush_in_steps(wire: Wire, sql: str, args: Sequence[object]) -> Any:
            # The server locks the lease, writes and commits. Here each is a step, under the names of a larger flush.
            _, _, group, topic, key, owner, *_ = args  # the watermark and the mark come first
            fresh_begin(wire)
            try:
                one(wire, "leases.FENCE", leases.FENCE.format(keys="%s"), (group, topic, key, owner))
                result = one(wire, "flushes.FLUSH", sql, args)
                paused_commit(wire)
            except BaseException:
                forgetful_rollback(wire)
                raise
            return result

        def fresh_begin(wire: Wire, *, proven: bool = True) -> None:
            pauses._end(wire)
            begin(wire, proven=proven)

        def paused_reclaim(wire: Wire) -> None:
            pauses._meet(wire, run, before=True, what=RECLAIM, sent=pauses._transaction(wire))
            reclaim(wire)

        def paused_commit(wire: Wire) -> int:
            sent = pauses._transaction(wire)
            pauses._meet(wire, run, before=True, what=COMMIT, sent=sent)
            commit(wire)
            pauses._end(wire)
            pauses._meet(wire, run, before=False, what=COMMIT, sent=sent)
            return 0

        def forgetful_rollback(wire: Wire) -> None:
            pauses._end(wire)
            rollback(wire)

        def taken_apart(wire: Wire, statements: Sequence[Statement]) -> list[int]:
            if not statements:
                return commit_with(wire, ())
            # What the server runs one by one is sent one by one, so that it can be stopped in between.
            return [
                *(int(paused_run(wire, one.sql, one.args).lastrowid or 0) for one in statements),
                paused_commit(wire),
            ]

        Wire._run, Wire.commit, Wire.rollback = paused_run, paused_commit, forgetful_rollback  # type: ignore[method-assign]
        Wire.begin, Wire.reclaim, Wire.commit_with = fresh_begin, paused_reclaim, taken_apart  # type: ignore[method-assign]

    def _transaction(self, wire: Wire) -> _Transaction:
        with self._lock:
            return self._open.setdefault(wire, _Transaction())

    def _end(self, wire: Wire) -> None:
        with self._lock:
            self._open.pop(wire, None)

    def _meet(self, wire: Wire, run: Callable[..., Any], *, before: bool, what: str, sent: _Transaction) -> None:
        with self._lock:
            fitting = (item for item in self._armed.items() if item[1].fits(before=before, what=what, sent=sent))
            text, armed = next(fitting, (None, None))
            if armed is None:
                return
            armed.reached = True
        run(wire, LONG_PAUSE, ())
        self._say("paused", point=text)
        armed.go.wait()
