"""Who holds what a statement waits for: asked after a lock time-out, for the text of its error.

It never asks for longer than its caller allows, never raises, and uses no connection of the pool or of a loop.
`Database.holder` calls it.

After a time-out the server knows nothing of the wait any more, and MariaDB shows only locks that somebody waits for. So
one connection waits again, and another one asks whom it waits for. That wait takes no lock for longer than a moment: it
is rolled back at once if it is granted. The holder is then the one of now, which is said so.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from attrs import evolve, frozen

from lanelog._database.driver import Driver
from lanelog._database.executor import Executor
from lanelog._database.wire import Wire
from lanelog.config import ConnectConfig
from lanelog.errors import LanelogError

# The server's time-out for the second wait: it ends even if nobody is left to end it.
_WAIT_BRIEFLY: Final = "SET SESSION innodb_lock_wait_timeout = 1"

# Those for whom a connection waits, and who wait for nobody themselves. (Data locks: a few; threads: its primary key.)
_OF_MYSQL: Final = """SELECT holder.PROCESSLIST_ID, holder.PROCESSLIST_USER, holder.PROCESSLIST_HOST
FROM performance_schema.data_lock_waits AS waits
JOIN performance_schema.threads AS waiter ON waiter.THREAD_ID = waits.REQUESTING_THREAD_ID
JOIN performance_schema.threads AS holder ON holder.THREAD_ID = waits.BLOCKING_THREAD_ID
WHERE waiter.PROCESSLIST_ID = %s AND NOT EXISTS (
SELECT 1 FROM performance_schema.data_lock_waits AS others
WHERE others.REQUESTING_ENGINE_TRANSACTION_ID = waits.BLOCKING_ENGINE_TRANSACTION_ID)"""

# The same. (Tables in the server's memory, made anew at most every 0.1 s.)
_OF_MARIADB: Final = """SELECT holder.trx_mysql_thread_id, session.USER, session.HOST
FROM information_schema.INNODB_LOCK_WAITS AS waits
JOIN information_schema.INNODB_TRX AS waiter ON waiter.trx_id = waits.requesting_trx_id
JOIN information_schema.INNODB_TRX AS holder ON holder.trx_id = waits.blocking_trx_id
LEFT JOIN information_schema.PROCESSLIST AS session ON session.ID = holder.trx_mysql_thread_id
WHERE waiter.trx_mysql_thread_id = %s AND holder.trx_state <> 'LOCK WAIT'"""

# MySQL without its performance schema, or for an account that may not read that: the one transaction that could be it,
# while ours waits. (Tables in the server's memory.)
_PERHAPS: Final = """SELECT holder.trx_mysql_thread_id, session.USER, session.HOST
FROM information_schema.INNODB_TRX AS waiter
JOIN information_schema.INNODB_TRX AS holder ON holder.trx_state = 'RUNNING' AND holder.trx_rows_locked > 0
LEFT JOIN information_schema.PROCESSLIST AS session ON session.ID = holder.trx_mysql_thread_id
WHERE waiter.trx_mysql_thread_id = %s AND waiter.trx_state = 'LOCK WAIT' LIMIT 2"""

_PAUSE: Final = 0.15
"""Seconds between two questions: asked more often, MariaDB would repeat its last answer."""
_CONNECT_WITHIN: Final = 1.0
_ANSWER_WITHIN: Final = 2.0


@frozen
class LockHolder:
    """A session that has a lock."""

    connection_id: int
    user: str | None
    host: str | None
    certain: bool
    """Whether the server says so; else it is the only session that could have it."""

    def __str__(self) -> str:
        by = f" ({self.user}@{self.host})" if self.user else ""
        return f"{'' if self.certain else 'perhaps '}by connection {self.connection_id}{by}"


def holder(config: ConnectConfig, lock: Callable[[Executor], object], *, seconds: float) -> LockHolder | None:
    """Return who holds what `lock` waits for; None if nobody does now, or if the account may not see it, or in doubt.

    `lock` runs in a transaction of its own, which is rolled back. It is given up after `seconds`.
    """
    found: queue.SimpleQueue[LockHolder | None] = queue.SimpleQueue()
    brief = evolve(
        config,
        connect_timeout=min(config.connect_timeout, _CONNECT_WITHIN),
        read_timeout=min(config.read_timeout, _ANSWER_WITHIN),
    )
    # In a thread: to connect, to log in and to be answered takes a time-out each. It ends by these, soon after us.
    threading.Thread(target=_look, args=(brief, lock, seconds, found.put), name="lanelog-blocking", daemon=True).start()
    try:
        return found.get(timeout=seconds)
    except queue.Empty:
        return None


def _look(
    config: ConnectConfig,
    lock: Callable[[Executor], object],
    seconds: float,
    answer: Callable[[LockHolder | None], None],
) -> None:
    driver = Driver(config)
    waiting, asking = Wire(driver, autocommit=False), Wire(driver, autocommit=True)
    found = None
    try:
        waiting.ensure()
        asking.ensure()
        found = _ask(waiting, asking, lock, time.monotonic() + seconds)
    except LanelogError:
        pass  # what there is to say has been said by the error that led here
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
                with suppress(LanelogError):  # one of them may be what the account may not ask
                    rows = asking.query(question, (number,))
                    if rows and (certain or len(rows) == 1):
                        return LockHolder(int(rows[0][0]), rows[0][1], rows[0][2], certain)
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
