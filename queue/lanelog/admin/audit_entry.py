"""What a method does, to what, for whom and why: the value that its event and its row in `queue_audit` are made of.

Never opens a transaction. A method records its act in each of its transactions that changes something, as its last
statement. So the row is there exactly if the change is, whatever happens to the process or to the answer of COMMIT. A
repetition after an unanswered COMMIT records what it finds left to do, and nothing if nothing is left.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import asdict, define, evolve, field, frozen

from lanelog._process.identity import ProcessIdentity
from lanelog._stores import audit
from lanelog._stores.audit import AuditRow
from lanelog.admin.lookup.arguments import BY_MAX, REASON_MAX, check_text
from lanelog.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog._database import Database, Executor

_CHOICE_MAX = 2048


@frozen(kw_only=True)
class Actor:
    """Who acts and why, as far as the caller says so."""

    by: str = ""
    reason: str = ""

    @classmethod
    def checked(cls, by: object, reason: object) -> Actor:
        """Raise ConfigurationError for what the columns cannot hold."""
        return cls(by=check_text("by", by, BY_MAX), reason=check_text("reason", reason, REASON_MAX))

    def but(self, *, by: object = "", reason: object = "") -> Actor:
        """Return the actor as a method names it that has arguments of its own for this. Empty ones change nothing."""
        given = Actor.checked(by, reason)
        return Actor(by=given.by or self.by, reason=given.reason or self.reason)


NOBODY = Actor()


@frozen
class Call:
    """What every method that changes something is given: the database, who calls, and whether it only shows."""

    database: Database
    actor: Actor
    dry_run: bool

    def but(self, *, by: object = "", reason: object = "") -> Call:
        """Return the call of a method that has arguments of its own for who acts and why."""
        return evolve(self, actor=self.actor.but(by=by, reason=reason))


@define(eq=False)
class Act:
    """One call of a method. It holds names and choices, never payloads."""

    call: Call
    verb: str
    topic: str = field(default="", kw_only=True)
    group: str = field(default="", kw_only=True)
    key: str = field(default="", kw_only=True)
    choice: str = field(default="", kw_only=True)
    """What the caller chose besides names, such as "to latest"."""
    id: str = field(factory=lambda: uuid.uuid4().hex, init=False)
    _parts: int = field(default=0, init=False)

    @property
    def database(self) -> Database:
        """Where it is done."""
        return self.call.database

    @property
    def dry_run(self) -> bool:
        """Whether it only shows what it would do."""
        return self.call.dry_run

    def values(self) -> dict[str, object]:
        """Return the fields of the call's event, without those that are empty."""
        why = self.call.actor.reason or self.choice or "an operator's decision"
        given = {"verb": self.verb, "topic": self.topic, "group": self.group, "key": self.key, "why": why}
        return {name: value for name, value in given.items() if value}

    def record(self, cx: Executor, *, messages: int = 0, **known: Any) -> None:
        """Write the row of this transaction. `known`: fields that are known only now, such as the topic.

        Tables of an older version have no column for it. It also deletes some rows that are over the retention: a call
        of many transactions must not write more than it deletes.
        """
        if self.database.tables_version < audit.SINCE:
            return
        fields = {"topic": self.topic, "group": self.group, "key": self.key, **known}
        row = AuditRow(
            id=self.id,
            part=self._parts,
            verb=self.verb,
            choice=self.choice[:_CHOICE_MAX],
            messages=messages,
            by=self.call.actor.by,
            reason=self.call.actor.reason,
            **asdict(ProcessIdentity(self.database.config.user)),
            **fields,
        )
        audit.record(cx, row)
        audit.forget(cx)
        self._parts += 1


@define(eq=False)
class Unanswered:
    """What is known of a transaction whose COMMIT was not answered: its repetition may find that it is done."""

    happened: bool = field(default=False, init=False)
    """Whether the COMMIT of some attempt was not answered: what it planned may be done."""
    lost: int = field(default=0, init=False)
    """The count of what that attempt planned."""
    _planned: int = field(default=0, init=False)

    def plan(self, count: int) -> None:
        """Note how many messages the transaction is about to commit."""
        self._planned = count

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run one attempt, its COMMIT included."""
        self._planned = 0
        try:
            yield
        except DatabaseError as error:
            if error.outcome_unknown:
                self.happened, self.lost = True, max(self.lost, self._planned)
            raise

    def committed(self, count: int) -> int:
        """Return the count of what was done: by the answered attempt, or by an unanswered one before it."""
        return max(count, self.lost)
