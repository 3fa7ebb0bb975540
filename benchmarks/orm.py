"""What a publish costs in an ORM's transaction: `python -m benchmarks.orm [--server KIND] [--turns N] [--profile]`.

Each transaction inserts one row, with and without a publish, through PyMySQL's bare connection, SQLAlchemy and Django,
in turns. A publish costs the difference of the medians; its share is that of the cost with the bare connection.

This program and its server share one processor. With two, the kernel wakes the server's thread on the other one after
Python has worked for a while, as in an ORM. Then each round trip takes twice as long, whatever is sent.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import random
import statistics
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import django
import pymysql
from django.conf import settings
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import Column, Integer, MetaData, create_engine, insert
from sqlalchemy import Table as SqlTable
from sqlalchemy.orm import Session

import lanelog
from lanelog import devserver
from lanelog.contrib.sqlalchemy import publish as publish_with_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATABASE = "orm"
CREATE = "CREATE TABLE orders (id INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY, number INTEGER NOT NULL)"
INSERT = "INSERT INTO orders (number) VALUES (%s)"
PAYLOAD = {"id": 7, "state": "paid"}
ORDERS = SqlTable("orders", MetaData(), Column("id", Integer, primary_key=True), Column("number", Integer))


class Ways:
    """The transactions that are compared."""

    def __init__(self, url: str, client: lanelog.Client) -> None:
        parts = urlsplit(url)
        self._client = client
        self._bare = pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=DATABASE,
        )
        self._bare.cursor().execute(CREATE)
        self._engine = create_engine(url.replace("mysql://", "mysql+pymysql://", 1))
        name = {"NAME": DATABASE, "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username}
        name["PASSWORD"] = parts.password or ""
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.mysql", **name}},
            INSTALLED_APPS=["lanelog.contrib.django"],
        )
        pymysql.install_as_MySQLdb()
        django.setup()

    def close(self) -> None:
        """Close the connections."""
        from django.db import connection

        connection.close()
        self._engine.dispose()
        self._bare.close()

    def bare(self, *, publishes: bool) -> None:
        """PyMySQL's connection."""
        self._bare.cursor().execute(INSERT, (1,))
        if publishes:
            self._client.publish("t", "k", PAYLOAD, connection=self._bare)
        self._bare.commit()

    def session(self, *, publishes: bool) -> None:
        """SQLAlchemy's session as `connection=`."""
        with Session(self._engine) as session, session.begin():
            session.execute(insert(ORDERS).values(number=1))
            if publishes:
                self._client.publish("t", "k", PAYLOAD, connection=session)

    def session_commit(self, *, publishes: bool) -> None:
        """`lanelog.contrib.sqlalchemy.publish`."""
        with Session(self._engine) as session, session.begin():
            session.execute(insert(ORDERS).values(number=1))
            if publishes:
                publish_with_session(session, self._client, "t", "k", PAYLOAD)

    def atomic(self, *, publishes: bool) -> None:
        """Django's connection as `connection=`."""
        from django.db import connection, transaction

        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(INSERT, (1,))
            if publishes:
                self._client.publish("t", "k", PAYLOAD, connection=connection)

    def atomic_commit(self, *, publishes: bool) -> None:
        """`lanelog.contrib.django.publish`."""
        from django.db import connection, transaction

        from lanelog.contrib.django import publish as publish_with_atomic

        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(INSERT, (1,))
            if publishes:
                publish_with_atomic("t", "k", PAYLOAD, client=self._client)


@contextmanager
def ways(server: devserver.DevServer) -> Iterator[Ways]:
    """The transactions, on a database of their own."""
    url = server.create_database(DATABASE)
    try:
        with lanelog.connect(url) as client:
            client.migrate()
            client.publish("t", "k", PAYLOAD)
            with closing(Ways(url, client)) as found:
                yield found
    finally:
        server.drop_database(DATABASE)


def measured(every: list[Callable[..., None]], turns: int) -> dict[tuple[Callable[..., None], bool], float]:
    """Return the median seconds of each transaction."""
    seconds: dict[tuple[Callable[..., None], bool], list[float]] = {
        (way, on): [] for way in every for on in (False, True)
    }
    for _ in track(range(turns), "Measuring"):
        for way, publishes in random.sample(list(seconds), len(seconds)):
            began = time.perf_counter()
            way(publishes=publishes)
            seconds[way, publishes].append(time.perf_counter() - began)
    return {which: statistics.median(found[len(found) // 10 :]) for which, found in seconds.items()}


def main() -> None:
    """Measure, and print what a publish costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="auto", metavar="KIND", help="as for `python -m benchmarks`")
    parser.add_argument("--turns", type=int, default=400, help="transactions of each kind (default: 400)")
    parser.add_argument("--profile", action="store_true", help="profile contrib.sqlalchemy.publish instead")
    asked = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with devserver.start(asked.server) as server, ways(server) as found:
        if asked.profile:
            profile = cProfile.Profile()
            profile.enable()
            for _ in range(asked.turns):
                found.session_commit(publishes=True)
            profile.disable()
            profile.print_stats("cumulative")
            return
        every: list[Callable[..., Any]] = [
            found.bare,
            found.session,
            found.session_commit,
            found.atomic,
            found.atomic_commit,
        ]
        medians = measured(every, asked.turns)
    cost = {way: medians[way, True] - medians[way, False] for way in every}
    table = Table("transaction of", "without", "with", "the publish", "share of bare")
    for way in every:
        told = (
            f"{medians[way, False] * 1000:.2f} ms",
            f"{medians[way, True] * 1000:.2f} ms",
            f"{cost[way] * 1000:.2f} ms",
        )
        table.add_row((way.__doc__ or "").rstrip("."), *told, f"{cost[way] / cost[every[0]]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
