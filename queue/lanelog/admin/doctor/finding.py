"""The findings of the doctor, and what each of its checks looks at.

Owns how a finding is made. Checks nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lanelog.admin.types.results import Finding

if TYPE_CHECKING:
    from lanelog._database import Database, Executor


class Patient(Protocol):
    """The server that the doctor looks at."""

    @property
    def database(self) -> Database:
        """Its database."""

    @property
    def cx(self) -> Executor:
        """A connection to it."""


def good(check: str, detail: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check=check, status="ok", detail=detail, remedy="")


def warn(check: str, detail: str, remedy: str) -> Finding:
    """It is worth knowing."""
    return Finding(check=check, status="warning", detail=detail, remedy=remedy)


def bad(check: str, detail: str, remedy: str) -> Finding:
    """Something does not work, or a promise is broken."""
    return Finding(check=check, status="error", detail=detail, remedy=remedy)
