"""A worker process of a chaos run: `python -m chaos.worker URL DIRECTORY NAME LEASE HINTS`.

Runs until SIGTERM or the nemesis. Owns the two groups' handlers, which write down what they do: `effects` writes one
row in `message.transaction()` or in a transaction of its own with `message.ack(connection=)`, `records` only notes the
message and settles it by returning or, now and then, by a blocking ack. Some processes give it several at once.
"""

import itertools
import logging
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pymysql
import tenacity
from attrs import evolve
from pymysql.constants import CLIENT

import lanelog
from chaos import hints
from chaos.history import Begin, End, Hinted, Journal, Settle, Warned
from support.sql import connect

TOPIC: Final = "jobs"
EFFECTS, RECORDS = "effects", "records"
WRITE: Final = "INSERT INTO effects (run, topic, partition_key, message_offset, id) VALUES (%s, %s, %s, %s, %s)"
PUBLISH_TIMEOUT: Final = 10.0
"""Short, so that outages outlast it, and because what was handled is collected after twice that time."""
FAILS, REJECTS, DAWDLES, ACKS = 0.02, 0.005, 0.1, 0.2
"""How often a handler raises, gives a message up, takes 0.3 seconds, and (records) settles by a blocking ack."""
OWN, LATE, LEFT = 0.4, 0.2, 0.05
"""How often `effects` has a transaction of its own, and what share of these is committed late, or never."""
LATENESS: Final = 0.5
"""Seconds at most between a handler's return and its late commit."""
SOCKET_SECONDS: Final = 10
BATCHES: Final = (None, lanelog.Batch(5, 0.1), lanelog.Batch(10, 0.05, "lanes"))
"""How the handlers of `records` get their messages, by the number of their process."""
RETRY: Final = lanelog.RetryPolicy(stop=tenacity.stop_after_attempt(50), wait=tenacity.wait_random(0.05, 1.0))


class Hiccup(Exception):
    """What a handler of the run fails with."""


class Handlers:
    """The handlers of both groups."""

    def __init__(self, url: str, name: str, journal: Journal) -> None:
        self._url = url
        self._name = name
        self._journal = journal
        self._numbers = itertools.count(1)
        self._dice = random.Random(name)
        self._never = threading.Event()
        self._free: list[pymysql.Connection] = []

    def effects(self, message: lanelog.Message) -> None:
        """Write a row and settle, in one transaction."""
        run = self._begin(message)
        asked = time.monotonic()
        try:
            self._work()
            if self._dice.random() < OWN:
                self._own_transaction(message, run)
                return
            with message.transaction() as connection:
                self._write(connection, message, run)
                asked = time.monotonic()
        except BaseException as error:
            if isinstance(error, lanelog.LeaseLost | lanelog.AlreadySettled):
                self._journal.write(Settle(at=time.monotonic(), run=run, asked=asked, accepted=False))
            self._end(run, raised=True)
            raise
        self._journal.write(Settle(at=time.monotonic(), run=run, asked=asked, accepted=True))
        self._end(run)

    def _own_transaction(self, message: lanelog.Message, run: str) -> None:
        """Write and ack on a connection of the handler's own, which commits at once, late or never."""
        connection = self._take()
        try:
            connection.cursor().execute("SAVEPOINT chaos")
            self._write(connection, message, run)
            message.ack(connection=connection)
            self._fail(LEFT)
            if self._dice.random() < LATE:
                late = threading.Timer(self._dice.random() * LATENESS, self._commit_late, (connection, run))
                late.start()
                return
            asked = time.monotonic()
            self._commit(connection)
        except BaseException:
            connection.close()
            raise
        self._free.append(connection)
        self._journal.write(Settle(at=time.monotonic(), run=run, asked=asked, accepted=True))
        self._end(run)

    def _commit_late(self, connection: pymysql.Connection, run: str) -> None:
        """Commit behind the handler's back. Until now nobody may go on; what is not committed has failed by now."""
        returned = End(at=time.monotonic(), run=run, outcome="returned")
        self._journal.write(returned)
        try:
            self._commit(connection)
        except pymysql.MySQLError:
            connection.close()
            self._journal.write(evolve(returned, outcome="raised"))
        else:
            self._free.append(connection)

    def _take(self) -> pymysql.Connection:
        """A connection that nobody uses, or a new one: one for each message would look like a storm of the library."""
        try:
            return self._free.pop()
        except IndexError:
            seconds = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), SOCKET_SECONDS)
            return connect(self._url, autocommit=False, client_flag=CLIENT.MULTI_STATEMENTS, **seconds)

    @staticmethod
    def _write(connection: pymysql.Connection, message: lanelog.Message, run: str) -> None:
        place = message.topic, message.key, message.offset, message.id
        connection.cursor().execute(WRITE, (run, *place))

    @staticmethod
    def _commit(connection: pymysql.Connection) -> None:
        """Commit in one request, and only what began with our savepoint: else somebody has ended it unseen."""
        with connection.cursor() as cursor:
            cursor.execute("RELEASE SAVEPOINT chaos; COMMIT")
            cursor.nextset()

    def records(self, message: lanelog.Message) -> None:
        """Note that the work is done, then settle."""
        run = self._begin(message)
        try:
            self._work()
        except (Hiccup, lanelog.Reject):
            self._end(run, raised=True)
            raise
        self._end(run)
        if self._dice.random() < ACKS:
            asked = time.monotonic()
            try:
                message.ack()
            except (lanelog.LeaseLost, lanelog.AlreadySettled):
                self._journal.write(Settle(at=time.monotonic(), run=run, asked=asked, accepted=False))
                raise
            self._journal.write(Settle(at=time.monotonic(), run=run, asked=asked, accepted=True))

    def record_batch(self, messages: lanelog.Messages) -> list[Exception | None]:
        """Note each of them in turn. In strict order, what follows a failure in its lane is not begun."""
        ends: list[Exception | None] = []
        stopped: set[str] = set()
        for message in messages:
            failure: Exception | None = None
            if message.key not in stopped:
                run = self._begin(message)
                try:
                    self._work(dawdles=not ends)  # once a batch: an operator waits no longer for it than for a message
                except Hiccup:
                    failure = lanelog.Retry()
                except lanelog.Reject as hopeless:
                    failure = hopeless
                self._end(run, raised=failure is not None)
            if failure is not None:
                stopped.add(message.key)
            ends.append(failure)
        return ends

    def _begin(self, message: lanelog.Message) -> str:
        run = f"{self._name}/{next(self._numbers)}"
        self._journal.write(
            Begin(
                at=time.monotonic(),
                run=run,
                process=self._name,
                group=message.group,
                topic=message.topic,
                key=message.key,
                offset=message.offset,
                id=message.id,
                attempt=message.attempt,
                epoch=message.fencing_token,
            )
        )
        return run

    def _end(self, run: str, *, raised: bool = False) -> None:
        self._journal.write(End(at=time.monotonic(), run=run, outcome="raised" if raised else "returned"))

    def _fail(self, share: float) -> None:
        if self._dice.random() < share:
            raise Hiccup

    def _work(self, *, dawdles: bool = True) -> None:
        chance = self._dice.random()
        if chance < FAILS:
            raise Hiccup
        if chance < FAILS + REJECTS:
            raise lanelog.Reject("hopeless")
        if chance < FAILS + REJECTS + DAWDLES and dawdles:
            self._never.wait(0.3)


def follow_parent() -> None:
    """End with the runner, however that ends: nobody else would end this process."""
    parent, never = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            never.wait(1)
        os._exit(1)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


def noted(client: lanelog.Client, name: str) -> Hinted:
    """How many hints a client has sent and received."""
    sender, engine = client._announcements.hints, client._engine
    sent, heard = sender.sent if sender else 0, engine.context.receiver.received if engine else 0
    return Hinted(at=time.monotonic(), process=name, sent=sent, heard=heard)


class Warnings(logging.Handler):
    """Writes down that two servers answer by turns, as the library says so."""

    def __init__(self, journal: Journal, name: str) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal
        self._process = name

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line for one WARNING."""
        if getattr(record, "event", "") == "servers.alternate":
            self._journal.write(Warned(at=time.monotonic(), process=self._process))


def until_there(attempt: Callable[[], object]) -> None:
    """Do what fails without a database until it does not: in life the process would end and be started again."""
    never = threading.Event()
    while True:
        try:
            attempt()
        except lanelog.DatabaseError:
            never.wait(0.2)
        else:
            return


def main(url: str, directory: str, name: str, lease: str, become: hints.Hints) -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    follow_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the client has its own
    (Path(directory) / f"{name}.ready").touch()
    with (
        Journal(Path(directory) / f"{name}.jsonl") as journal,
        lanelog.connect(url, publish_timeout=PUBLISH_TIMEOUT, wake=hints.switch(become, name)) as client,
    ):
        logging.getLogger("lanelog").addHandler(Warnings(journal, name))
        until_there(client.ping)
        handlers = Handlers(url, name, journal)
        batch = BATCHES[int(re.sub(r"\D", "", name) or 0) % len(BATCHES)]
        records = handlers.records if batch is None else handlers.record_batch
        for group, workers, handler in ((EFFECTS, 6, handlers.effects), (RECORDS, 3, records)):
            client.subscriber(
                TOPIC,
                group,
                name=name,
                workers=workers,
                order="strict",
                retry=RETRY,
                max_deliveries=None,
                batch=batch if group == RECORDS else None,
                lease_duration=float(lease),
                lease_renewal=float(lease) / 3,
                retention=2 * PUBLISH_TIMEOUT,
            )(handler)
        until_there(client.start)
        client.run()
        for late in threading.enumerate():
            if isinstance(late, threading.Timer):
                late.join()
        journal.write(noted(client, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
