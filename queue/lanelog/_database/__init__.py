"""Everything between lanelog and its database: connections, transactions, and their errors.

Never contains a statement on a table of lanelog. A store gets an `Executor`. A thread that works for long has its own
`Session`, and all others borrow a `Transaction` from the pool.

* `login` logs in, and `driver` opens connections. `choice` and `primary`: on which of several hosts.
* `translation` makes lanelog's errors of a driver's, `outage` for a loop. `codes` groups the numbers.
* `wire` is one connection. If it breaks, nothing of its transaction is repeated on another one. `incarnation` names one
  life of one server. `pool` lends a wire for a `transaction`, with a bounded wait. `session` is one thread's own wire.
* `answers` and `rows` repair PyMySQL. `loans` and `locking` lose nothing when an exception interrupts them. `unwrap`
  finds an ORM's connection, `foreign` runs statements there, `naming` names our database, traces: `instrumentation`.
* `session_settings`, `server_facts`, `row_locks`: whether the server took what we set, is supported, and locks rows.
* `connection_priority` and `reserve` decide who gets none of too few connections. `blocking` finds who holds a lock.
* `retries` repeats whole transactions. `packet` sends one in one round trip, `stopped_packets` ends one of `awaited`,
  `savepoint` proves it. `fork` makes a child forget inherited connections. `ambient` knows which a thread has open.
"""

from lanelog._database import codes, outage, row_locks
from lanelog._database.connection.driver import LATEST
from lanelog._database.connection.login import fastest
from lanelog._database.connection.packet import Statement
from lanelog._database.connection.unwrap import driver_connection
from lanelog._database.executor import NOW_MS, SERVER_MARK, Executor, Lock
from lanelog._database.fork import register_shared
from lanelog._database.locking import taking
from lanelog._database.pool.ambient import OpenTransaction, find_open, open_in_this_thread, own_transaction
from lanelog._database.pool.foreign import SERVER, ForeignExecutor, TransactionGone
from lanelog._database.pool.pool import Database
from lanelog._database.pool.session import Session
from lanelog._database.pool.transaction import Transaction
from lanelog._database.server.incarnation import START_TOLERANCE_MS, Incarnation, server_start, signed
from lanelog._database.server.server_facts import ServerFacts
from lanelog._database.time_left import GRACE

__all__ = [
    "GRACE", "LATEST", "NOW_MS", "SERVER", "SERVER_MARK", "START_TOLERANCE_MS", "Database", "Executor",
    "ForeignExecutor", "Incarnation", "Lock", "OpenTransaction", "ServerFacts", "Session", "Statement", "Transaction",
    "TransactionGone", "codes", "driver_connection", "fastest", "find_open", "open_in_this_thread", "outage",
    "own_transaction", "register_shared", "row_locks", "server_start", "signed", "taking",
]  # fmt: skip
