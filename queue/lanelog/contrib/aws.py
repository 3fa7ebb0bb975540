"""Passwords for databases of AWS: the tokens of IAM, which end after a quarter of an hour."""

from __future__ import annotations

from typing import Any

import boto3
from attrs import define, field

__all__ = ["IamTokens"]


@define(eq=False)
class IamTokens:
    """`connect(url, password=IamTokens())`: for each login a token of IAM, for the host that is logged in to.

    boto3 finds region and credentials as it does elsewhere; it asks nobody for a token, but signs it itself. A token is
    a password that a server asks for unencrypted, so a connection without TLS is refused with ConfigurationError. Works
    with PyMySQL, and with mysqlclient if LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN=1 is in its environment.

    Args:
        region: The region of the database. None: the session's.
        session: A `boto3.Session`. None: a new one.
    """

    region: str | None = None
    session: Any = field(default=None, repr=False)
    _client: Any = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # At once: boto3's sessions are not for two threads, and its clients are.
        session = self.session or boto3.Session()
        self._client = session.client("rds", region_name=self.region)

    def token(self, host: str, port: int, user: str) -> str:
        """Return the password of a login that begins now. Raises the errors of boto3."""
        token: str = self._client.generate_db_auth_token(DBHostname=host, Port=port, DBUsername=user)
        return token
