"""A server that somebody else runs, known by its URL.

It never starts, stops or kills that server; it creates and drops databases there when asked. `start` calls it.
"""

from typing import ClassVar

from attrs import define

from lanelog.devserver._server import DevServer, family_and_version
from lanelog.errors import ConfigurationError


@define(eq=False, kw_only=True)
class GivenServer(DevServer):
    """A server given by its URL. The account needs the right to create databases for `create_database`."""

    own: ClassVar[bool] = False

    @classmethod
    def at(cls, url: str) -> "GivenServer":
        """Ask the server who it is."""
        family, version = ask_version(url)
        return cls(url=url, version=version, family=family)

    def kill(self) -> None:
        """Refused: the server is not ours."""
        raise ConfigurationError("the server given by a URL is not started here and cannot be killed")

    def restart(self) -> None:
        """Refused: the server is not ours."""
        raise ConfigurationError("the server given by a URL is not started here and cannot be restarted")

    def stop(self) -> None:
        """Nothing was started."""


def ask_version(url: str) -> tuple[str, str]:
    """Family and version of the server behind a URL."""
    from lanelog._database import Database
    from lanelog.config import ConnectConfig

    database = Database(ConnectConfig.from_url(url))
    try:
        with database.autocommit() as cx:
            row = cx.one("SELECT VERSION()")
    finally:
        database.close()
    return family_and_version(str(row[0]) if row else "")
