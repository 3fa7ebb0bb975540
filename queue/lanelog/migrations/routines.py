"""The stored function and procedure for publishing by plain SQL, from `schema/routines/*.sql`.

Owns the statements that create and replace them. MySQL replaces none in one step: whoever calls one in that moment gets
an error, and nothing is published.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from lanelog._database import codes
from lanelog.errors import ConfigurationError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Session

NAMES: Final = ("lanelog_append", "lanelog_publish")
"""In the order in which they are created: the second one calls the first."""

# The catalogue shows those that this account may execute or alter.
FOUND: Final = """SELECT routine_name AS name, routine_comment AS text FROM information_schema.routines
WHERE routine_schema = DATABASE() AND routine_name IN ('lanelog_append', 'lanelog_publish')"""

_DROP: Final = {"lanelog_append": "DROP FUNCTION IF EXISTS", "lanelog_publish": "DROP PROCEDURE IF EXISTS"}
_MARK: Final = "COMMENT 'lanelog'"

_REFUSED: Final = (
    "this account may not create routines that write while the server has a binary log: SET GLOBAL "
    "log_bin_trust_function_creators = 1 there, as for triggers"
)


@cache
def declared() -> Mapping[str, str]:
    """Return the statements that create them, by name. Each names its own checksum in its comment."""
    folder = resources.files("lanelog").joinpath("_schema", "routines")
    texts = {name: folder.joinpath(f"{name}.sql").read_text(encoding="utf-8") for name in NAMES}
    return {name: text.replace(_MARK, f"COMMENT '{comment(text)}'") for name, text in texts.items()}


def comment(text: str) -> str:
    """Return the comment of a routine that is created by this text."""
    return f"lanelog {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def install(session: Session, *, wanted: bool) -> list[str]:
    """Create what is missing, if it is `wanted`, and replace what is of another text. Return what was done.

    Raises ConfigurationError if the server lets this account create no such routine, and DatabaseError.
    """
    found = {str(name): str(text) for name, text in session.query(FOUND)}
    if not (wanted or found):
        return []
    done = []
    for name, statement in declared().items():
        if f"COMMENT '{found.get(name, '')}'" in statement:
            continue
        try:
            session.execute(f"{_DROP[name]} {name}")
            session.execute(statement)
        except DatabaseError as error:
            if error.code in codes.ROUTINE_REFUSED:
                raise ConfigurationError(f"{_REFUSED} ({error})") from error
            raise
        done.append(f"{'replaced' if name in found else 'created'} routine {name}")
    return done
