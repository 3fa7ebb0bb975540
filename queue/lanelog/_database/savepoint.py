"""The savepoint by which a transaction proves, with its COMMIT, that it is still the one that was begun.

A transaction may end without a word to its client: a proxy connects again behind a living connection, or a pool of
sessions resets one. What it had written is gone, and its COMMIT would be answered with success. So a savepoint goes
before its first statement, in the same packet, and RELEASE goes before the COMMIT. A savepoint ends with its
transaction. Without it the server refuses RELEASE, and does not come to the COMMIT. Autocommit is off meanwhile, so
that what is sent after such an end is in another transaction, which is never committed.

Owns these texts and the error. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field

from lanelog._database import codes
from lanelog.errors import DatabaseError, LanelogError

SET: Final = "SAVEPOINT lanelog_start"
RELEASE: Final = "RELEASE SAVEPOINT lanelog_start"
AUTOCOMMIT_OFF: Final = "SET autocommit = 0"
AUTOCOMMIT_ON: Final = "SET autocommit = 1"

# MariaDB runs such a block as one statement, and leaves it at the first error. So it needs no permission for packets.
COMMITTED_IN_A_BLOCK: Final = f"BEGIN NOT ATOMIC {RELEASE}; COMMIT; END"


@define
class TransactionProof:
    """What one session has of it: whether a transaction has begun, and whether its savepoint was sent."""

    begun: bool = field(default=False, init=False)
    """Whether a transaction has begun that is to be proven."""
    stands: bool = field(default=False, init=False)
    """Whether its savepoint was sent."""
    lent: bool = field(default=False, init=False)
    """Whether user code has the transaction, or had it."""
    unproven: bool = field(default=False, init=False)
    """Whether RELEASE and COMMIT were sent one by one. An end between the two would not be noticed."""
    _wanted: bool = field(default=False, init=False)
    """Whether a statement outside of a transaction is to commit by itself."""
    _autocommit: bool | None = field(default=None, init=False)
    """Whether autocommit is on. None: a packet that sets it has failed, perhaps after that."""

    def connected(self, *, autocommit: bool) -> None:
        """The session is new."""
        self._wanted = self._autocommit = autocommit

    def begin(self, *, proven: bool) -> None:
        """A transaction begins with the next statement."""
        self.begun = proven
        self.stands = self.lent = self.unproven = False

    def end(self) -> None:
        """The transaction is over."""
        self.begun = self.stands = False

    def before(self) -> Sequence[str]:
        """Return what goes before the next statement: a transaction begins, or autocommit is still off after one."""
        if self.begun and not self.stands:
            self.stands = True
            if self._autocommit is False:
                return (SET,)
            self._autocommit = None
            return (AUTOCOMMIT_OFF, SET)
        if self.begun or not self._wanted or self._autocommit:
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
    """Whether it answers a statement that needs the savepoint, and there is none."""
    return isinstance(error, DatabaseError) and error.code == codes.NO_SUCH_SAVEPOINT


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
        "the transaction ended unseen, as when a proxy connects again or resets the session: nothing was committed "
        f"({error})",
        code=codes.NO_SUCH_SAVEPOINT,
        retriable=True,
    )
