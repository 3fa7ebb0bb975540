"""Everything between lanelog and its database: connections, transactions, errors, and what happens when they break.

Never knows a table. Stores get an `Executor`, loops a `Session` of their own, all others a pooled `Transaction`.

How it holds together:

* `driver` opens connections, the only room that imports PyMySQL or mysqlclient; `translation` maps their errors.
* `codes` has the numbers of errors by what follows from them.
* `wire` is one connection that knows whether it is alive. What breaks in the middle of a statement is closed at once
  and never used again; nothing is ever replayed behind a transaction's back.
* `packet` sends a whole transaction in one round trip.
* `incarnation` is which life of which server answers: what memory believes is true of one alone.
* `pool` shares wires among threads, with a bounded wait; `session` is one thread's own wire.
* `naming` sends our statements to our database on a connection that user code has in its hands.
* `worth` says who goes without where the server has too few connections.
* `retries` repeats whole transactions, never statements.
* `fork` makes a child drop what it inherited, without a word to the server.
* `ambient` remembers which of our transactions a thread has open, so that it does not wait for itself.
"""

from __future__ import annotations

from lanelog._database import codes
from lanelog._database.ambient import OpenTransaction, find_open, open_in_this_thread, own_transaction
from lanelog._database.driver import LATEST, ServerFacts
from lanelog._database.executor import NOW_MS, SERVER_MARK, Executor
from lanelog._database.incarnation import START_TOLERANCE_MS, Incarnation, server_start, signed
from lanelog._database.naming import named
from lanelog._database.packet import Statement
from lanelog._database.pool import Database, Transaction
from lanelog._database.retries import with_retries
from lanelog._database.session import Session
from lanelog._database.translation import code_of, comes_from_driver, translate

# fmt: off
__all__ = [
    "LATEST", "NOW_MS", "SERVER_MARK", "START_TOLERANCE_MS", "Database", "Executor", "Incarnation", "OpenTransaction",
    "ServerFacts", "Session", "Statement", "Transaction", "code_of", "codes", "comes_from_driver", "find_open", "named",
    "open_in_this_thread", "own_transaction", "server_start", "signed", "translate", "with_retries",
]
