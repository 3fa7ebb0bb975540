"""Kills sessions and statements of a chaos run's server.

Owns the choice of sessions. It never decides when. The nemesis and the server's faults call it, each with a connection
of its own, which is spared.
"""

import random
from collections.abc import Iterable
from typing import Final

import pymysql

from support.sql import rows, sessions

SHARE: Final = 0.5
"""The chance of each session."""


def kill_some(connection: pymysql.Connection, dice: random.Random) -> None:
    """Kill some of the database's sessions."""
    _kill(connection, "CONNECTION", [session for session in sorted(sessions(connection)) if dice.random() < SHARE])


def kill_running(connection: pymysql.Connection, dice: random.Random) -> None:
    """Kill some of the statements that are being executed, and no session."""
    running = [number for number, _, _, _, doing, *_ in rows(connection, "SHOW PROCESSLIST") if doing == "Query"]
    own = connection.thread_id()
    _kill(connection, "QUERY", [number for number in running if number != own and dice.random() < SHARE])


def kill_account(connection: pymysql.Connection, user: str) -> None:
    """Kill all sessions of an account."""
    _kill(connection, "CONNECTION", [number for number, of, *_ in rows(connection, "SHOW PROCESSLIST") if of == user])


def _kill(connection: pymysql.Connection, what: str, numbers: Iterable[int]) -> None:
    with connection.cursor() as cursor:
        for number in numbers:
            try:
                cursor.execute(f"KILL {what} {number}")
            except pymysql.err.OperationalError:
                continue  # it had just ended
