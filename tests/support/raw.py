"""Connections past the library, for tests of servers that they start, kill or count."""

from typing import Any

import pymysql

from lanelog.config import ConnectConfig


def connect(url: str, **options: Any) -> Any:
    """A DB-API connection to a URL's database; the caller closes it."""
    config = ConnectConfig.from_url(url)
    account = {name: getattr(config, name) for name in ("host", "port", "unix_socket", "user", "password", "database")}
    return pymysql.connect(**account, **options)
