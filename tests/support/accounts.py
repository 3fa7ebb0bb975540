"""Accounts for tests: other users of a test's database."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from lanelog.config import ConnectConfig
from support.sql import rows

PASSWORD = "pw" + secrets.token_hex(8)


def as_user(url: str, user: str, password: str) -> str:
    """The same database for another account."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{where}"))


@contextmanager
def account(root: Any, url: str, grants: Mapping[str, str], password: str = PASSWORD) -> Iterator[str]:
    """A user with these privileges by table (`*`: every one), as long as the block lasts; its URL."""
    name, database = f"u{secrets.token_hex(6)}", ConnectConfig.from_url(url).database
    rows(root, f"CREATE USER '{name}'@'%%' IDENTIFIED BY %s", password)
    try:
        for table, what in grants.items():
            rows(root, f"GRANT {what} ON `{database}`.{table} TO '{name}'@'%'")
        yield as_user(url, name, password)
    finally:
        rows(root, f"DROP USER '{name}'@'%'")
