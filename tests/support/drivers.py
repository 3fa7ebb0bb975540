"""Connections of an application's own, by each driver that is installed."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import sqlalchemy
from attrs import frozen
from sqlalchemy.pool import NullPool

from lanelog.config import ConnectConfig

DRIVERS = {"pymysql": "pymysql", **({"mysqlclient": "MySQLdb"} if find_spec("MySQLdb") else {})}


@frozen
class Driver:
    """A driver, and the server to connect to."""

    name: str
    url: str

    def open(self) -> Any:
        """A connection of the application's own, with autocommit off."""
        config = ConnectConfig.from_url(self.url)
        named = {"host": config.host, "port": config.port, "user": config.user, "database": config.database}
        options = {"password": config.password or "", "charset": "utf8mb4"}
        return import_module(DRIVERS[self.name]).connect(**{**named, **options})

    def engine(self, **options: Any) -> sqlalchemy.Engine:
        """SQLAlchemy's engine, whose connections are not kept."""
        dialect = {"pymysql": "pymysql", "mysqlclient": "mysqldb"}[self.name]
        return sqlalchemy.create_engine(f"mysql+{dialect}://", creator=self.open, poolclass=NullPool, **options)
