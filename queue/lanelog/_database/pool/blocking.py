"""The connection that holds a lock, looked up after a lock time-out, for the text of the error.

Never keeps its caller waiting for longer than allowed, and uses no connection of the pool or of a loop.

After a time-out the server has forgotten the wait, and MariaDB shows only locks that a connection waits for. So one
connection waits again, and another one asks for the holder. If the lock is granted, it is rolled back at once. The
answer is the holder at that moment, not at the time-out.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from attrs import frozen

from lanelog._database.connection.driver import Driver
from lanelog._database.connection.wire import Wire
from lanelog._database.executor import Executor
from lanelog._process.ending import ending
from lanelog.errors import LanelogError

# The server's time-out for the second wait, which ends it if this process dies.
_WAIT_BRIEFLY: Final = "SET SESSION innodb_lock_wait_timeout = 1"

# The sessions that a connection waits for, and that wait for no lock themselves. (Data locks: a few; threads: its
# primary key.)
_OF_MYSQL: Final = """SELECT holder.PROCESSLIST_ID, holder.PROCESSLIST_USER, holder.PROCESSLIST_HOST
FROM performance_schema.data_lock_waits AS waits
JOIN performance_schema.threads AS waiter ON waiter.THREAD_ID = waits.REQUESTING_THREAD_ID
JOIN performance_schema.threads AS holder ON holder.THREAD_ID = waits.BLOCKING_THREAD_ID
WHERE waiter.PROCESSLIST_ID = %s AND NOT EXISTS (
SELECT 1 FROM performance_schema.data_lock_waits AS others
WHERE others.REQUESTING_ENGINE_TRANSACTION_ID = waits.BLOCKING_ENGINE_TRANSACTION_ID)"""

# The same. (Tables in the server's memory, renewed at most every 0.1 s.)
_OF_MARIADB: Final = """SELECT holder.trx_mysql_thread_id, session.USER, session.HOST
FROM information_schema.INNODB_LOCK_WAITS AS waits
JOIN information_schema.INNODB_TRX AS waiter ON waiter.trx_id = waits.requesting_trx_id
JOIN information_schema.INNODB_TRX AS holder ON holder.trx_id = waits.blocking_trx_id
LEFT JOIN information_schema.PROCESSLIST AS session ON session.ID = holder.trx_mysql_thread_id
WHERE waiter.trx_mysql_thread_id = %s AND holder.trx_state <> 'LOCK WAIT'"""

# On MySQL without performance schema, or for an account that may not read it: the other transactions with row locks,
# while ours waits. Only a single one is an answer. (Tables in the server's memory.)
_PERHAPS: Final = """SELECT holder.trx_mysql_thread_id, session.USER, session.HOST
FROM information_schema.INNODB_TRX AS waiter
JOIN information_schema.INNODB_TRX AS holder ON holder.trx_state = 'RUNNING' AND holder.trx_rows_locked > 0
LEFT JOIN information_schema.PROCESSLIST AS session ON session.ID = holder.trx_mysql_thread_id
WHERE waiter.trx_mysql_thread_id = %s AND waiter.trx_state = 'LOCK WAIT' LIMIT 2"""

_PAUSE: Final = 0.15
"""Seconds between two questions. In less than 0.1 s MariaDB repeats its last answer."""
_CONNECT_WITHIN: Final = 1.0
_ANSWER_WITHIN: Final = 2.0


@frozen
class LockHolder:
    """A session that holds a lock."""

    connection_id: int
    user: str | None
    host: str | None
    certain: bool
    """Whether the server says so. False: it is the only session that could hold it."""

    def __str__(self) -> str:
        by = f" ({self.user}@{self.host})" if self.user else ""
        return f"{'' if self.certain else 'perhaps '}by connection {self.connection_id}{by}"


def holder(driver: Driver, lock: Callable[[Executor], object], *, seconds: float) -> LockHolder | None:
    """Return the session that holds what `lock` waits for. None: no session does, or it is not known.

    `lock` runs in a transaction of its own, which is rolled back. The query ends after `seconds`.
    """
    if ending():
        return None  # no thread can be started any more
    found: queue.SimpleQueue[LockHolder | None] = queue.SimpleQueue()
    brief = driver.brief(connect=_CONNECT_WITHIN, answer=_ANSWER_WITHIN)
    # In a thread of its own: the time-outs of connect, login and each answer may together exceed `seconds`. They end
    # the thread soon after this call.
    threading.Thread(target=_read, args=(brief, lock, seconds, found.put), name="lanelog-blocking", daemon=True).start()
    try:
        return found.get(timeout=seconds)
    except queue.Empty:
        return None


def _read(
    driver: Driver,
    lock: Callable[[Executor], object],
    seconds: float,
    answer: Callable[[LockHolder | None], None],
) -> None:
    waiting, asking = Wire(driver, autocommit=False), Wire(driver, autocommit=True)
    found = None
    try:
        waiting.ensure()
        asking.ensure()
        assert waiting.facts is not None  # noqa: S101 - for the type checker: they have connected
        assert asking.facts is not None  # noqa: S101
        if asking.facts.identity != waiting.facts.identity:
            return  # numbers of connections are of one server
        found = _ask(waiting, asking, lock, time.monotonic() + seconds)
    except LanelogError:
        pass  # the error that led here is shown without a holder
    finally:
        answer(found)
        asking.close()


def _ask(waiting: Wire, asking: Wire, lock: Callable[[Executor], object], until: float) -> LockHolder | None:
    assert waiting.facts is not None  # noqa: S101 - for the type checker: it has connected
    number = waiting.facts.connection_id
    questions = [(_OF_MARIADB, True)] if waiting.facts.mariadb else [(_OF_MYSQL, True), (_PERHAPS, False)]
    over = threading.Event()
    waiter = threading.Thread(target=_wait, args=(waiting, lock, over), name="lanelog-blocked", daemon=True)
    waiter.start()
    try:
        while not over.wait(_PAUSE) and time.monotonic() < until:
            for question, certain in questions:
                with suppress(LanelogError):  # the account may lack the privilege for one of them
                    rows = asking.query(question, (number,))
                    if rows and (certain or len(rows) == 1):
                        connection, account, host = rows[0]
                        return LockHolder(int(connection), account, host, certain)
        return None
    finally:
        if not over.is_set():
            with suppress(LanelogError):
                asking.execute(f"KILL {number}")  # our own: needs no privilege


def _wait(wire: Wire, lock: Callable[[Executor], object], over: threading.Event) -> None:
    try:
        wire.execute(_WAIT_BRIEFLY)
        lock(wire)
    except LanelogError:
        pass  # the time-out, or the KILL
    finally:
        over.set()
        wire.rollback()
        wire.close()
