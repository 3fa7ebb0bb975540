"""The text of the error when a publish gives up: which lanes were locked, and which connection holds them.

Never raises, and asks the server only after a failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from copy import copy
from typing import Final

from attrs import define, field

from lanelog._database import Database, Lock, codes, register_shared
from lanelog._stores.log import partitions
from lanelog.errors import DatabaseError

_NAMED: Final = 3
_ASKED_FOR: Final = 2.0
"""Seconds that an error may be late for the sake of its text."""
_FRESH: Final = 1.0
"""Seconds for which an answer is given again."""
_AT_ONCE: Final = 4
"""Questions that are asked at the same time. Each takes two connections of its own."""


@define(eq=False)
class _Question:
    """What one thread asks the server, for all threads that gave up on the same lanes."""

    answer: str | None = None
    """None: it has not come yet."""
    at: float = field(factory=time.monotonic)
    """When the answer came (monotonic), or the question was asked."""


@define(eq=False)
class Locked:
    """Describes locked lanes. Thread-safe. Threads that gave up on the same lanes ask the server once."""

    _database: Database
    _questions: dict[tuple[str, frozenset[str]], _Question] = field(factory=dict, init=False, repr=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """Forget the questions in a forked child: it has none of the threads."""
        self._changed, self._questions = threading.Condition(), {}

    def explained(self, error: DatabaseError, topic: str, keys: Collection[str], *, ask: bool = True) -> DatabaseError:
        """Return `error`. For a lock time-out, return a copy that names the locked lanes and, if `ask`, the holder."""
        if error.code != codes.LOCK_WAIT_TIMEOUT:
            return error
        explained = copy(error)
        by = self.holder(topic, keys) if ask else ""
        explained.args = (f"{lanes(topic, keys)} locked by another transaction{by}: {error}",)
        return explained

    def holder(self, topic: str, keys: Collection[str]) -> str:
        """Return ` (now held by connection 17 (app@10.0.0.3:5123))`, or nothing if the server does not answer soon."""
        asked, until = (topic, frozenset(keys)), time.monotonic() + _ASKED_FOR
        with self._changed:
            self._changed.wait_for(lambda: self._known(asked) or self._asking() < _AT_ONCE, _ASKED_FOR)
            known = self._known(asked)
            if known is not None:
                self._changed.wait_for(lambda: known.answer is not None, until - time.monotonic())
                return known.answer or ""
            if self._asking() >= _AT_ONCE:
                return ""
            self._questions = {each: self._questions[each] for each in self._questions if self._known(each)}
            question = self._questions[asked] = _Question()
        answer = ""
        try:
            found = self._database.holder(
                lambda cx: partitions.heads(cx, topic, keys, Lock.UPDATE), seconds=until - time.monotonic()
            )
            answer = f" (now held {found})" if found is not None else ""
        finally:
            with self._changed:
                question.answer, question.at = answer, time.monotonic()
                self._changed.notify_all()
        return answer

    def _known(self, asked: tuple[str, frozenset[str]]) -> _Question | None:
        """The question about these lanes whose answer another thread may take."""
        question = self._questions.get(asked)
        return question if question is not None and _counts(question) else None

    def _asking(self) -> int:
        """How many questions have no answer yet."""
        return sum(each.answer is None and _counts(each) for each in self._questions.values())


def _counts(question: _Question) -> bool:
    """Whether its answer is fresh, or may still come: an interrupt may have ended the thread that asked."""
    return time.monotonic() - question.at < (2 * _ASKED_FOR if question.answer is None else _FRESH)


def lanes(topic: str, keys: Collection[str]) -> str:
    """Return `the lane of key 'k' of topic 't' was`, or the same for several."""
    named = ", ".join(repr(key) for key in sorted(keys)[:_NAMED])
    if len(keys) == 1:
        return f"the lane of key {named} of topic {topic!r} was"
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"one of the lanes of keys {named}{more} of topic {topic!r} was"
