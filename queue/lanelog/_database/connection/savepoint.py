"""The savepoint by which a transaction proves, with its COMMIT, that it is still the one that was begun.

A transaction may end without a word to its client: a proxy connects again behind a living connection, or a pool of
sessions resets one. What it had written is gone, and its COMMIT would be answered with success. So a savepoint goes
before its first statement, in the same packet, and RELEASE goes before the COMMIT. A savepoint ends with its
transaction. Without it the server refuses RELEASE, and does not come to the COMMIT. Autocommit is off meanwhile, so
that what is sent after a ROLLBACK is in another transaction, which is never committed. In a session that was reset or
replaced autocommit is on. If that was before the transaction, the packet with the savepoint is refused. What a
transaction sends after it is committed at once.

Where the server takes one statement at a time, something stands between RELEASE and COMMIT. MariaDB runs both as one
block. MySQL has no such block, so the transaction is committed by a statement that compares first: SET autocommit. A
session counts how often it has rolled back. The client asks for this and for the session's number before RELEASE. (It
keeps them itself: a proxy may set the variables of a session again in a new one.) If either has changed, the value is
none that autocommit can have. The server refuses it, and commits nothing.

Owns these texts and the error. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field

from lanelog._database import codes
from lanelog.errors import DatabaseError, LanelogError

_NAME: Final = "lanelog_start"
SET: Final = f"SAVEPOINT {_NAME}"
RELEASE: Final = f"RELEASE SAVEPOINT {_NAME}"
AUTOCOMMIT_OFF: Final = "SET autocommit = 0"
AUTOCOMMIT_ON: Final = "SET autocommit = 1"
# It is off, unless the session was reset or replaced. There is no autocommit 2.
AUTOCOMMIT_IS_OFF: Final = "SET autocommit = IF(@@autocommit, 2, 0)"

# MariaDB runs such a block as one statement, and leaves it at the first error. So it needs no permission for packets.
_BLOCK: Final = "BEGIN NOT ATOMIC {}; {}; END"
COMMITTED_IN_A_BLOCK: Final = _BLOCK.format(RELEASE, "COMMIT")

# MySQL's. Every account may read this table, and it has this row without instrumentation, too.
_ROLLBACKS: Final = (
    "(SELECT VARIABLE_VALUE FROM performance_schema.session_status WHERE VARIABLE_NAME = 'Handler_rollback')"
)
_STATE: Final = f"CONCAT(CONNECTION_ID(), '/', {_ROLLBACKS})"
NOTE_STATE: Final = f"SELECT {_STATE}"
COMMIT_IN_STATE: Final = f"SET autocommit = IF({_STATE} = %s, 1, 2), autocommit = 0"


@define
class TransactionProof:
    """What one session has of it: whether a transaction has begun, and whether its savepoint was sent."""

    begun: bool = field(default=False, init=False)
    """Whether a transaction has begun that is to be proven."""
    stands: bool = field(default=False, init=False)
    """Whether its savepoint was sent."""
    lent: bool = field(default=False, init=False)
    """Whether user code has the transaction, or had it."""
    lent_at: int | None = field(default=None, init=False)
    """How many commands were sent before user code had it. None: nobody knows."""
    unused: bool = field(default=False, init=False)
    """Whether user code has had it and sent nothing."""
    _mariadb: bool = field(default=False, init=False)
    _wanted: bool = field(default=False, init=False)
    """Whether a statement outside of a transaction is to commit by itself."""
    _autocommit: bool | None = field(default=None, init=False)
    """Whether autocommit is on. None: a packet that sets it has failed, perhaps after that."""

    def connected(self, *, autocommit: bool, mariadb: bool) -> None:
        """The session is new."""
        self._mariadb = mariadb
        self._wanted = self._autocommit = autocommit

    def begin(self, *, proven: bool) -> None:
        """A transaction begins with the next statement."""
        self.begun = proven
        self.stands = self.lent = self.unused = False
        self.lent_at = None

    def end(self) -> None:
        """The transaction is over."""
        self.begun = self.stands = False

    @property
    def opens(self) -> bool:
        """Whether something goes before the next statement."""
        return not self.stands if self.begun else self._wanted and not self._autocommit

    def before(self, *, several: bool) -> Sequence[str]:
        """Return what goes before the next statement: a transaction begins, or autocommit is still off after one.

        `several`: in one packet with it. Otherwise each is a round trip of its own.
        """
        if self.begun and not self.stands:
            self.stands = True
            off = AUTOCOMMIT_IS_OFF if self._autocommit is False else AUTOCOMMIT_OFF
            if several:
                self._autocommit = None
                return (off, SET)
            if self._mariadb:
                self._autocommit = None
                return (_BLOCK.format(off, SET),)
            if self._autocommit is False:
                return (SET,)
            self._autocommit = None
            return (off, SET)
        if not self.opens:
            return ()
        self._autocommit = None
        return (AUTOCOMMIT_ON,)

    def sent(self, before: Sequence[str]) -> None:
        """Call it when the statement was answered with success. Until then nobody knows whether autocommit is on."""
        if before and self._autocommit is None:
            self._autocommit = AUTOCOMMIT_ON in before

    def explained(self, error: LanelogError) -> LanelogError:
        """Return the error to raise for the answer to a statement that needs the savepoint."""
        return _ended(error, lent=self.lent) if is_gone(error) else error


def is_gone(error: LanelogError) -> bool:
    """Whether it answers a statement that commits only what still stands."""
    if not isinstance(error, DatabaseError):
        return False
    return is_another_session(error) or (error.code == codes.NO_SUCH_SAVEPOINT and _NAME in str(error))


def is_another_session(error: LanelogError) -> bool:
    """Whether it answers a SET of autocommit that compares first."""
    return isinstance(error, DatabaseError) and error.code == codes.VALUE_REFUSED and "'autocommit'" in str(error)


def _ended(error: LanelogError, *, lent: bool) -> DatabaseError:
    """Return the error of a transaction that has ended before its COMMIT. `lent`: user code had it."""
    if lent:
        return DatabaseError(
            "the transaction ended inside the block, by commit(), rollback(), a statement that commits implicitly, "
            "a deadlock that was not raised, or a proxy that connected again: what was written before that point is "
            f"not part of it any more ({error})",
            code=codes.NO_SUCH_SAVEPOINT,
        )
    return DatabaseError(
        "the transaction ended unseen, as when a proxy connects again or resets the session: what was sent before that "
        f"is not committed ({error})",
        code=codes.NO_SUCH_SAVEPOINT,
        retriable=True,
    )
