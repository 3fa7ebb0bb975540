"""A forwarding TCP proxy that the nemesis disturbs: it cuts, stalls and half-closes what goes through it.

Owns its sockets and one thread, which forwards bytes. It looks at them only to end transactions (`unseen`). The runner
makes one, and a share of the processes go through it.
"""

import random
import selectors
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from attrs import define, field

from chaos.unseen import Unseen

CHUNK: Final = 256 * 1024
BOTH: Final = selectors.EVENT_READ | selectors.EVENT_WRITE

SHARE: Final = 0.5
"""The chance of each connection when some are cut."""


@define(eq=False)
class Pipe:
    """One direction of a connection: what was read at `source` and not yet written to `target`."""

    source: socket.socket
    target: socket.socket
    waiting: bytearray = field(factory=bytearray)
    ended: bool = False
    deaf: bool = False
    """It was half-closed: what still comes is read and goes nowhere."""


@define(eq=False)
class Link:
    """A client's connection and the server's."""

    client: socket.socket
    server: socket.socket
    target: int
    """The server's port."""
    up: Pipe = field(init=False)
    down: Pipe = field(init=False)
    peer: int = field(init=False)
    """The client's port."""
    unseen: Unseen = field(factory=Unseen, init=False)

    def __attrs_post_init__(self) -> None:
        self.peer = self.client.getpeername()[1]
        self.up = Pipe(self.client, self.server)
        self.down = Pipe(self.server, self.client)

    def close(self) -> None:
        """Close both; whoever waits sees the end."""
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Forwards connections to a port of this machine. A context manager; `port` is where it listens.

    `cut`, `stall`, `resume`, `half_close`, `aim`, `lead`, `leading_to`, `forget`, `remember` and `vanish` may be called
    by any thread, and have happened when they return.
    """

    def __init__(self, target: int) -> None:
        self.leads_to: tuple[int, ...] = (target,)
        """The ports, by turns."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._links: set[Link] = set()
        self._orphans: list[socket.socket] = []
        self._stalled = False
        self._ended = False
        self.accepted = 0
        """How many connections clients have made."""
        self._forgetting: random.Random | None = None
        self.forgotten = 0
        """How many times a transaction was ended unseen, or would have been if there was none."""
        self._orders: list[tuple[Callable[[], object], threading.Event]] = []
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._order(self._end)
        self._thread.join()
        for end in (self._listener, self._waker, self._woken):
            end.close()
        self._selector.close()

    def cut(self, dice: random.Random | None = None) -> None:
        """Cut every connection, or the half that `dice` choose; new ones are accepted."""
        self._order(lambda: self._cut(dice))

    def stall(self) -> None:
        """Let no byte pass, and answer no new connection, until `resume`."""
        self._order(lambda: setattr(self, "_stalled", True))

    def resume(self) -> None:
        """Go on after a stall, with every byte that waited."""
        self._order(lambda: setattr(self, "_stalled", False))

    def half_close(self, dice: random.Random) -> None:
        """Shut one direction of every connection, which `dice` chooses; the other one goes on."""
        self._order(lambda: self._half_close(dice))

    def aim(self, target: int | None) -> None:
        """Cut every connection, and lead new ones to this port; None: for now to nobody."""

        def do() -> None:
            self.leads_to = () if target is None else (target,)
            self._cut()

        self._order(do)

    def lead(self, *targets: int) -> None:
        """Lead new connections to these ports by turns; whoever is connected stays where he is."""
        self._order(lambda: setattr(self, "leads_to", targets))

    def leading_to(self, port: int) -> int:
        """How many connections lead to a port."""
        found: list[int] = []
        self._order(lambda: found.append(sum(link.target == port for link in self._links)))
        return found[0]

    def forget(self, dice: random.Random) -> None:
        """End transactions unseen, before statements that `dice` chooses, until `remember`."""
        self._order(lambda: setattr(self, "_forgetting", dice))

    def remember(self) -> None:
        """End no more of them."""
        self._order(lambda: setattr(self, "_forgetting", None))

    def vanish(self, ports: Collection[int]) -> None:
        """Let the clients at these ports be gone without a word: the server's ends of their connections stay open."""
        self._order(lambda: self._vanish(ports))

    # -- in the proxy's thread -------------------------------------------------------------------------------------

    def _order(self, do: Callable[[], object]) -> None:
        done = threading.Event()
        self._orders.append((do, done))
        self._waker.send(b"!")
        done.wait(10)

    def _run(self) -> None:
        while not self._ended:
            ready = self._selector.select()
            for key, events in ready:
                if key.fileobj is self._woken:
                    self._obey()
                    break  # what was ready may be closed by now
                if self._stalled:
                    continue
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._forward(key.data, key.fileobj, events)  # type: ignore[arg-type]
            if self._stalled and not self._ended:
                self._wait_for_orders()
        self._cut()

    def _wait_for_orders(self) -> None:
        # Sockets stay ready during a stall: looking at them all would keep a core busy.
        while self._stalled and not self._ended:
            with selectors.DefaultSelector() as alone:
                alone.register(self._woken, selectors.EVENT_READ)
                alone.select()
            self._obey()

    def _obey(self) -> None:
        self._woken.recv(4096)
        while self._orders:
            do, done = self._orders.pop(0)
            do()
            done.set()

    def _end(self) -> None:
        self._ended = True

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            try:
                if not self.leads_to:
                    raise ConnectionRefusedError
                self.accepted += 1
                target = self.leads_to[self.accepted % len(self.leads_to)]
                server = socket.create_connection(("127.0.0.1", target), timeout=5)
            except OSError:
                client.close()  # the server is down: so the client finds it
                return
            link = Link(client, server, target)
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(end, selectors.EVENT_READ, link)
            self._links.add(link)

    def _forward(self, link: Link, end: socket.socket, events: int) -> None:
        if link not in self._links:
            return
        outgoing, incoming = (link.up, link.down) if end is link.client else (link.down, link.up)
        try:
            if events & selectors.EVENT_READ and not outgoing.ended and not outgoing.waiting:
                self._read(link, outgoing)
            if events & selectors.EVENT_WRITE and incoming.waiting:
                del incoming.waiting[: incoming.target.send(incoming.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(link)
            return
        for pipe in (link.up, link.down):
            if pipe.ended and not pipe.waiting:
                self._drop(link)  # a client or server that says good-bye is done with both directions
                return
        self._watch(link)

    def _read(self, link: Link, pipe: Pipe) -> None:
        data = pipe.source.recv(CHUNK)
        if not data:
            pipe.ended = True
            return
        if pipe is link.up:
            data = link.unseen.asked(data, self._forgetting)
            self.forgotten += link.unseen.busy
        elif link.unseen.busy:
            pipe, data = link.up, link.unseen.answered(data)
        else:
            link.unseen.told()
        if not pipe.deaf:
            self._send(pipe, data)

    def _send(self, pipe: Pipe, data: bytes) -> None:
        try:
            sent = pipe.target.send(data)
        except BlockingIOError:
            sent = 0
        pipe.waiting += data[sent:]

    def _watch(self, link: Link) -> None:
        """Ask for what each end can do now: nothing is read that the other end does not take."""
        for end, outgoing, incoming in ((link.client, link.up, link.down), (link.server, link.down, link.up)):
            held = outgoing is link.up and link.unseen.busy
            wanted = 0 if outgoing.ended or outgoing.waiting or held else selectors.EVENT_READ
            wanted |= selectors.EVENT_WRITE if incoming.waiting else 0
            known = self._selector.get_map().get(end)
            if known is not None and known.events != wanted:
                self._selector.unregister(end)
                known = None
            if known is None and wanted:
                self._selector.register(end, wanted, link)

    def _half_close(self, dice: random.Random) -> None:
        for link in list(self._links):
            pipe = dice.choice((link.up, link.down))
            pipe.deaf = True
            pipe.waiting.clear()
            with suppress(OSError):
                pipe.target.shutdown(socket.SHUT_WR)
            self._watch(link)

    def _vanish(self, ports: Collection[int]) -> None:
        for link in list(self._links):
            if link.peer in ports:
                self._forget(link)
                link.client.close()
                self._orphans.append(link.server)

    def _cut(self, dice: random.Random | None = None) -> None:
        for link in list(self._links):
            if dice is None or dice.random() < SHARE:
                self._drop(link)
        while self._orphans and dice is None:
            self._orphans.pop().close()

    def _drop(self, link: Link) -> None:
        self._forget(link)
        link.close()

    def _forget(self, link: Link) -> None:
        self._links.discard(link)
        for end in (link.client, link.server):
            if end in self._selector.get_map():
                self._selector.unregister(end)


def ports(pid: int) -> set[int]:
    """The local ports of a process's TCP connections."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[9] in inodes:
            found.add(int(words[1].rpartition(":")[2], 16))
    return found
