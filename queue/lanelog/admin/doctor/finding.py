"""The findings of the doctor, and what each of its checks reads.

Owns how a finding is made. Checks nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from lanelog.admin.types.results import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Database, Executor


@frozen
class Patient:
    """The server that all checks read."""

    database: Database
    cx: Executor
    settings: Mapping[str, str]
    repair: bool
    old_after: float
    """Seconds after which an open transaction is old."""

    def on(self, name: str) -> bool:
        """Return whether a setting of the server is on. A setting that the server does not know is off."""
        return self.settings.get(name, "OFF").upper() in {"ON", "1", "YES"}


def good(detail: str) -> Finding:
    """Nothing is wrong. The doctor names the finding after its check."""
    return _found("ok", detail)


def warn(detail: str, remedy: str) -> Finding:
    """An operator should know it."""
    return _found("warning", detail, remedy)


def bad(detail: str, remedy: str) -> Finding:
    """Something does not work, or a promise is broken."""
    return _found("error", detail, remedy)


def _found(status: str, detail: str, remedy: str = "") -> Finding:
    return Finding(check="", status=status, detail=detail, remedy=remedy)
