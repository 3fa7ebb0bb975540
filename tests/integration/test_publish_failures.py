"""Publishing while connections, the server or the process go away."""

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from attrs import define, evolve, field

from lanelog._database import Database
from lanelog.config import ConnectConfig
from lanelog.devserver import DevServer
from lanelog.errors import DatabaseError
from lanelog.message import Outgoing
from lanelog.migrations import migrate
from lanelog.publisher import Publisher


def run(raw: Any, sql: str, *args: object) -> list[tuple[Any, ...]]:
    with raw.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


@define(eq=False)
class Proxy:
    """A network between client and server that can be cut at a certain statement."""

    target: Callable[[], socket.socket]
    cut_at: bytes = b""
    """The next request that ends with this is the last one of its connection."""
    deliver: bool = True
    """Whether that request still reaches the server, which then answers nobody."""
    cuts: int = 0
    _listener: socket.socket = field(factory=socket.socket)
    _open: list[socket.socket] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self.target()
                self._open += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.cut_at and data.endswith(self.cut_at):
                    self.cut_at = b""
                    self.cuts += 1
                    client.shutdown(socket.SHUT_WR)  # what the server answers gets nowhere
                    if self.deliver:
                        server.sendall(data)
                    break
                server.sendall(data)
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(lanelog_url: str) -> Iterator[Proxy]:
    config = ConnectConfig.from_url(lanelog_url)

    def connect() -> socket.socket:
        if config.unix_socket:
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(config.unix_socket)
            return upstream
        return socket.create_connection((config.host, config.port))

    proxy = Proxy(connect)
    yield proxy
    proxy.close()


@contextmanager
def publisher_at(config: ConnectConfig) -> Iterator[Publisher]:
    database = Database(config)
    publisher = Publisher(database, lambda _: None)
    try:
        yield publisher
    finally:
        publisher.close()
        database.close()


@pytest.fixture
def distant(lanelog_url: str, proxy: Proxy) -> Iterator[Publisher]:
    """A publisher that reaches the server through the proxy."""
    config = ConnectConfig.from_url(lanelog_url, publish_timeout=20.0)
    with publisher_at(evolve(config, host="127.0.0.1", port=proxy.port, unix_socket=None)) as publisher:
        publisher.publish("t", "k", b"first")
        yield publisher


def test_an_unknown_commit_is_repeated_without_a_second_copy(distant: Publisher, proxy: Proxy, raw: Any) -> None:
    """The connection is cut after COMMIT was sent: the message is there once, and no duplicate to its publisher."""
    for deliver in (True, False):
        proxy.deliver = deliver
        for message_id in (None, f"given-{deliver}"):
            proxy.cut_at = b"COMMIT"
            receipt = distant.publish("t", "k", b"x", id=message_id)
            assert not receipt.duplicate
            assert run(raw, "SELECT COUNT(*), MAX(`offset`) FROM queue_messages") == [(receipt.offset, receipt.offset)]
    assert proxy.cuts == 4


def test_an_unknown_commit_of_many_is_repeated(distant: Publisher, proxy: Proxy, raw: Any) -> None:
    """All of them are there once, in order, and old ids are still told to be duplicates."""
    distant.publish("t", "k", b"old", id="old")
    items: list[Any] = [("k", b"1"), Outgoing("k", b"2", id="new"), Outgoing("k", b"3", id="old"), ("j", b"4")]
    for deliver, offset in ((True, 3), (False, 5)):
        proxy.cut_at, proxy.deliver = b"COMMIT", deliver
        items[1] = Outgoing("k", b"2", id=f"new-{deliver}")
        receipts = distant.publish_many("t", items)
        assert [receipt.offset for receipt in receipts][:3] == [offset, offset + 1, 2]
        assert [receipt.duplicate for receipt in receipts] == [False, False, True, False]
    assert proxy.cuts == 2
    assert run(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'k'") == [(6,)]
    assert run(raw, "SELECT COUNT(*) FROM queue_messages WHERE partition_key = 'j'") == [(2,)]


@pytest.mark.parametrize("statement", [b"SKIP LOCKED", b"')", b",0,'')"])
def test_a_connection_lost_before_the_commit_is_repeated(
    distant: Publisher, proxy: Proxy, raw: Any, statement: bytes
) -> None:
    """Wherever in the transaction it is lost, the whole of it is repeated on another connection."""
    proxy.cut_at = statement
    assert distant.publish("t", "k", b"x").offset == 2
    assert proxy.cuts == 1
    assert run(raw, "SELECT COUNT(*) FROM queue_messages") == [(2,)]


def test_our_transaction_reports_an_unknown_commit(distant: Publisher, proxy: Proxy, raw: Any) -> None:
    """What the block did cannot be repeated by the library: it says that the outcome is unknown."""

    def write() -> None:
        with distant.transaction() as connection:
            distant.publish("t", "k", b"x", connection=connection)
            proxy.cut_at = b"COMMIT"

    with pytest.raises(DatabaseError) as caught:
        write()
    assert caught.value.outcome_unknown
    assert caught.value.retriable
    deadline = time.monotonic() + 10
    while run(raw, "SELECT COUNT(*) FROM queue_messages") != [(2,)]:
        assert time.monotonic() < deadline


def test_the_very_first_connection_may_be_lost_while_it_logs_in(lanelog_url: str, proxy: Proxy, raw: Any) -> None:
    """A server that has greeted is there: publish repeats, although this client was never connected before."""
    config = ConnectConfig.from_url(lanelog_url, publish_timeout=20.0)
    proxy.cut_at = b"ISOLATION LEVEL READ COMMITTED"  # the first thing that a session says
    proxy.deliver = False
    with publisher_at(evolve(config, host="127.0.0.1", port=proxy.port, unix_socket=None)) as publisher:
        assert publisher.publish("t", "k", b"x").offset == 1
    assert proxy.cuts == 1
    assert run(raw, "SELECT COUNT(*) FROM queue_messages") == [(1,)]


def test_a_killed_connection_costs_nothing(publisher: Publisher, raw: Any) -> None:
    """Every pooled connection is killed again and again: publishers do not notice."""
    stop = threading.Event()

    def publish(number: int) -> list[int]:
        return [publisher.publish("t", f"k{number % 2}", b"x").offset for _ in range(100)]

    def kill() -> None:
        own = run(raw, "SELECT CONNECTION_ID()")[0][0]
        while not stop.is_set():
            for (thread,) in run(raw, "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"):
                if thread != own:
                    with suppress(Exception):  # it may have ended by itself
                        run(raw, f"KILL {thread}")
            stop.wait(0.2)

    with ThreadPoolExecutor(5) as threads:
        killing = threads.submit(kill)
        offsets = list(threads.map(publish, range(4)))
        stop.set()
        killing.result()
    for lane in (0, 1):
        assert sorted(offsets[lane] + offsets[lane + 2]) == list(range(1, 201))
    assert run(raw, "SELECT COUNT(*) FROM queue_messages") == [(400,)]


def test_a_server_restart_loses_and_doubles_nothing(private_server: DevServer) -> None:
    """Publishers wait for the server to come back; what they were promised is there, once."""
    config = ConnectConfig.from_url(private_server.create_database("restart"), publish_timeout=60.0)
    with publisher_at(config) as publisher:
        migrate(publisher._database)
        stop = threading.Event()
        some = threading.Event()

        def publish(number: int) -> list[str]:
            ids = []
            while not stop.is_set():
                ids.append(publisher.publish("t", f"k{number}", b"x").id)
                if len(ids) == 20:
                    some.set()
            return ids

        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(publish, number) for number in range(4)]
            try:
                assert some.wait(30)
                private_server.kill()
                private_server.restart()
            finally:
                stop.set()
            promised = [message_id for call in calls for message_id in call.result()]
        with publisher._database.autocommit() as cx:
            stored = [message_id for (message_id,) in cx.query("SELECT id FROM queue_messages")]
            heads = cx.query(
                "SELECT p.head_offset, COUNT(*), MAX(m.`offset`) FROM queue_partitions p JOIN queue_messages m "
                "USING (topic, partition_key) GROUP BY partition_key, p.head_offset"
            )
    assert sorted(stored) == sorted(promised)
    assert all(head == count == last for head, count, last in heads)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_publishes_for_itself(publisher: Publisher, raw: Any, open_raw: Any) -> None:
    """A fork in the middle of other threads' publishing disturbs neither side."""
    publisher.ensure_lanes("t", ["held"])
    holder = open_raw()
    run(holder, "SELECT 1 FROM queue_partitions WHERE topic = 't' AND partition_key = 'held' FOR UPDATE")
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(3))
        stack.callback(holder.rollback)
        stuck = [threads.submit(publisher.publish, "t", "held", b"parent") for _ in range(3)]
        publisher.publish("t", "k", b"parent")
        pid = os.fork()
        if pid == 0:
            try:
                offset = publisher.publish("t", "k", b"child").offset
                with publisher.transaction() as connection:
                    publisher.publish("t", "new", b"child", connection=connection)
                publisher.close()
                publisher._database.close()
                os._exit(0 if offset == 2 else 1)
            except BaseException:  # noqa: BLE001 - a child that raised must not go on as a second pytest
                traceback.print_exc()
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert publisher.publish("t", "k", b"parent").offset == 3
        assert not any(one.done() for one in stuck)
        holder.rollback()
        assert sorted(one.result(20).offset for one in stuck) == [1, 2, 3]
    assert run(raw, "SELECT COUNT(*) FROM queue_messages") == [(7,)]
