"""The stored function and procedure for publishing by plain SQL, from `schema/routines/*.sql`.

Owns the statements that create and replace them. MySQL replaces none in one step: whoever calls one in that moment gets
an error, and nothing is published.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from lanelog._database import codes
from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Session

VERSION: Final = 1
"""The version of their texts, which stands in their comments. An older library leaves those of a newer one."""

NAMES: Final = ("lanelog_append", "lanelog_publish")
"""In the order in which they are created: the second one calls the first."""

# The catalogue shows those that this account may execute or alter.
FOUND: Final = """SELECT routine_name AS name, routine_comment AS text FROM information_schema.routines
WHERE routine_schema = DATABASE() AND routine_name IN ('lanelog_append', 'lanelog_publish')"""

_TRIAL: Final = "lanelog_trial"
_DROP_TRIAL: Final = f"DROP FUNCTION IF EXISTS {_TRIAL}"
_DROP: Final = {"lanelog_append": "DROP FUNCTION IF EXISTS", "lanelog_publish": "DROP PROCEDURE IF EXISTS"}

_REFUSED: Final = (
    "this account may not create routines that write while the server has a binary log: SET GLOBAL "
    "log_bin_trust_function_creators = 1 there, as for triggers"
)


@cache
def declared() -> Mapping[str, str]:
    """Return the statements that create them, by name."""
    folder = resources.files("lanelog").joinpath("_schema", "routines")
    return {name: folder.joinpath(f"{name}.sql").read_text(encoding="utf-8") for name in NAMES}


def outdated(session: Session, *, wanted: bool) -> list[str]:
    """Return the names of those to create or replace: nothing, if none is there and none is `wanted`."""
    found = {str(name): _version(str(text)) for name, text in session.query(FOUND)}
    return [name for name in NAMES if found.get(name, 0) < VERSION] if wanted or found else []


def install(session: Session, names: list[str], *, mariadb: bool) -> list[str]:
    """Create or replace these. Return what was done.

    Raises ConfigurationError if the server lets this account create no such routine, and DatabaseError. Then those of
    before are still there: the first one is tried under another name.
    """
    try:
        session.execute(_DROP_TRIAL)
        session.execute(declared()[NAMES[0]].replace(f"FUNCTION {NAMES[0]}", f"FUNCTION {_TRIAL}", 1))
        session.execute(_DROP_TRIAL)
        for name in names:
            statement = declared()[name]
            if mariadb:
                session.execute(re.sub(r"^CREATE ", "CREATE OR REPLACE ", statement, count=1, flags=re.MULTILINE))
            else:
                session.execute(f"{_DROP[name]} {name}")
                session.execute(statement)
    except DatabaseError as error:
        if error.code in codes.ROUTINE_REFUSED:
            raise ConfigurationError(f"{_REFUSED} ({error})") from error
        if error.code == codes.ROUTINE_EXISTS:  # another process has just created it
            error.retriable = True
        raise
    return [f"created routine {name}" for name in names]


def _version(comment: str) -> int:
    found = re.fullmatch(r"lanelog (\d+)", comment)
    return int(found[1]) if found else 0
