"""A server that runs already, given by its URL.

Never starts, stops or kills that server. Creates and drops databases there when asked.
"""

from typing import ClassVar

from attrs import define

from lanelog.devserver._server import DevServer, family_and_version
from lanelog.errors import ConfigurationError


@define(eq=False, kw_only=True)
class GivenServer(DevServer):
    """A server given by its URL. For `create_database`, the account needs the privilege to create databases."""

    own: ClassVar[bool] = False

    @classmethod
    def at(cls, url: str) -> "GivenServer":
        """Ask the server for its family and version."""
        family, version = ask_version(url)
        return cls(url=url, version=version, family=family)

    def kill(self) -> None:
        """Refuse: the server was not started here."""
        raise ConfigurationError("the server given by a URL is not started here and cannot be killed")

    def restart(self) -> None:
        """Refuse: the server was not started here."""
        raise ConfigurationError("the server given by a URL is not started here and cannot be restarted")

    def stop(self) -> None:
        """Do nothing: the server was not started here."""


def ask_version(url: str) -> tuple[str, str]:
    """Return family and version of the server behind a URL."""
    from lanelog._database import Database
    from lanelog.config import ConnectConfig

    database = Database(ConnectConfig.from_url(url))
    try:
        with database.autocommit() as cx:
            row = cx.one("SELECT VERSION()")
    finally:
        database.close()
    return family_and_version(str(row[0]) if row else "")
