"""Trials of a server's locks, each with two sessions: locks of a session, and locks of rows.

Owns the trials. Changes nothing, and judges nothing: `doctor` does.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any

from lanelog import migrations
from lanelog.admin.doctor.trials import HURRY

if TYPE_CHECKING:
    from lanelog._database import Database, Executor

# Locks that belong to a session, as liveness locks do.
TAKE = "SELECT GET_LOCK(%s, 0), CONNECTION_ID()"
GIVE = "SELECT RELEASE_LOCK(%s), CONNECTION_ID()"
IS_USED = "SELECT IS_USED_LOCK(%s)"


def sessions_keep(database: Database, cx: Executor) -> bool:
    """Return whether a lock that one session takes belongs to it, and shows to another one. Raises DatabaseError."""
    name = f"lanelog.doctor.{secrets.token_hex(8)}"
    with closing(database.session("doctor")) as session:
        taken, holder = _pair(session.one(TAKE, (name,)))
        seen = cx.one(IS_USED, (name,))
        given, again = _pair(session.one(GIVE, (name,)))
        after = cx.one(IS_USED, (name,))
    return (taken, given, holder) == (1, 1, again) and seen == (holder,) and after == (None,)


def rows_are_locked(database: Database, cx: Executor) -> bool:
    """Return whether a row that one session locks is skipped by another one. False: not known.

    Raises ConfigurationError if the server locks no rows, SchemaError, and DatabaseError.
    """
    with closing(database.session("doctor")) as session:
        session.execute(HURRY)
        return migrations.locks_rows(session, cx, database.facts())


def _pair(row: tuple[Any, ...] | None) -> tuple[Any, Any]:
    first, second = row or (None, None)
    return first, second
