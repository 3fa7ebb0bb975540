"""What a chaos run calls its server: an address, the server behind it, and the one that may take its place.

Owns both servers, their disks and where the address leads; it never decides when. Replication is asynchronous, by GTID:
a replica begins as a copy of the primary's files, taken while that stands still, and goes on from the position the copy
recovers to. Nothing is dumped and loaded: that takes a second or two, whatever is in the tables.
"""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from attrs import define, field

from chaos.disk import SmallDisk
from chaos.node import PATIENCE, Node
from chaos.proxy import Proxy

FAILS_OVER_WITHIN: Final = 1.5
"""Seconds for which nobody answers, at the least: whoever heard from the old server has written it down by then."""

POSITION: Final = {"mariadb": "SELECT @@GLOBAL.gtid_binlog_pos", "mysql": "SELECT @@GLOBAL.gtid_executed"}
"""What a server has committed, as it calls it."""

CAUGHT_UP: Final = {
    "mariadb": "SELECT MASTER_GTID_WAIT(%s, %s) = 0",
    "mysql": "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s) = 0",
}
STARTS: Final = {"mariadb": "START SLAVE", "mysql": "START REPLICA"}
HOLDS_BACK: Final = {"mariadb": "STOP SLAVE SQL_THREAD", "mysql": "STOP REPLICA SQL_THREAD"}
FORGETS: Final = {
    "mariadb": ("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0"),
    "mysql": ("STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL super_read_only = 0", "SET GLOBAL read_only = 0"),
}
READ_ONLY: Final = {"mariadb": "SET GLOBAL read_only = 1", "mysql": "SET GLOBAL super_read_only = 1"}
WROTE: Final = {
    "mariadb": "SELECT CONCAT(',', @@GLOBAL.gtid_binlog_state) REGEXP CONCAT(',[0-9]+-', @@GLOBAL.server_id, '-')",
    "mysql": "SELECT LOCATE(@@GLOBAL.server_uuid, @@GLOBAL.gtid_executed) > 0",
}
"""Whether a server has transactions of its own."""


@define(eq=False, kw_only=True)
class Pair:
    """A context manager. `url` leads to whichever server is the primary, as its administrator."""

    primary: Node
    give_disk: Callable[[Node], SmallDisk | None] = lambda _: None
    failures: list[str] = field(factory=list)
    address: Proxy = field(init=False)
    replica: Node | None = field(default=None, init=False)
    retired: Node | None = field(default=None, init=False)
    """What was the primary, and is read-only now."""
    struck: float = field(default=0.0, init=False)
    """Right before the primary was killed: clients may notice it before it is known to be dead."""
    _also: list[Proxy] = field(factory=list, init=False)
    _disks: dict[int, SmallDisk] = field(factory=dict, init=False)
    _retired_at: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self.address = Proxy(self.primary.port)

    def __enter__(self) -> Self:
        self.address.__enter__()
        self._equip(self.primary)
        return self

    def __exit__(self, *error: object) -> None:
        self.retire()
        for node in (self.replica, self.primary):
            self._end(node)
        self.address.__exit__(*error)

    @property
    def url(self) -> str:
        """The address."""
        parts = urlsplit(self.primary.url)
        at = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.address.port}"
        return urlunsplit(parts._replace(netloc=at))

    @property
    def family(self) -> str:
        """Of both."""
        return self.primary.family

    @property
    def version(self) -> str:
        """Of both."""
        return self.primary.version

    @property
    def disk(self) -> SmallDisk | None:
        """The primary's."""
        return self._disks.get(self.primary.number)

    def lead(self, proxy: Proxy) -> None:
        """Let this proxy lead to the primary, too, from now on."""
        self._also.append(proxy)

    def kill(self) -> None:
        """SIGKILL to the primary."""
        self.primary.kill()

    def restart(self) -> None:
        """Start it again."""
        self.primary.restart()

    # -- replication -----------------------------------------------------------------------------------------------

    def replicate(self) -> None:
        """Have a replica that follows the primary."""
        self.retire()
        replica = self.primary.copied()
        try:
            self._equip(replica)
            replica.tell(READ_ONLY[self.family], *self._follow(replica), STARTS[self.family])
        except BaseException:
            replica.stop()
            raise
        self.replica = replica

    def restart_both(self) -> None:
        """End both servers as a power cut would, and start them in the same second."""
        both = (self.primary, self._replica())
        for node in both:
            node.kill()
        threads = [threading.Thread(target=node.restart, name=f"restart-{node.number}") for node in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._replica().tell(READ_ONLY[self.family], STARTS[self.family])

    def hold_back(self) -> float:
        """Let the replica apply nothing more; since when (monotonic) it may lack what was committed."""
        now = time.monotonic()
        self.catch_up()
        self._replica().tell(HOLDS_BACK[self.family])
        return now

    def catch_up(self) -> None:
        """Wait until the replica has what the primary has committed by now."""
        (position,) = self.primary.ask(POSITION[self.family])[0]
        if self._replica().ask(CAUGHT_UP[self.family], position, PATIENCE)[0][0] != 1:
            status = self._replica().row("SHOW SLAVE STATUS" if self.family == "mariadb" else "SHOW REPLICA STATUS")
            raise RuntimeError(f"the replica does not follow: { ({k: v for k, v in status.items() if 'Err' in k}) }")

    def balance(self, proxy: Proxy) -> None:
        """Let a proxy lead new connections to the primary and to its replica by turns."""
        proxy.lead(self.primary.port, self._replica().port)

    def lead_back(self, proxy: Proxy) -> int:
        """Let it lead new ones to the primary alone; how many lead to the replica still."""
        proxy.lead(self.primary.port)
        return proxy.leading_to(self._replica().port)

    def dismiss(self) -> None:
        """End the replica; that somebody has written there is a failure."""
        replica = self._replica()
        if replica.ask(WROTE[self.family])[0][0]:
            self.failures.append("somebody wrote to the replica")
        self._end(replica)
        self.replica = None

    def promote(self, look: Callable[[Node], None]) -> tuple[float, float]:
        """Kill the primary and put the replica in its place; when it was dead, and when the address led on again.

        `look` sees the new primary before anybody else does.
        """
        self.struck = time.monotonic()
        self.primary.kill()
        died = time.monotonic()
        old, new = self.primary, self._replica()
        new.tell(*FORGETS[self.family])
        look(new)
        self.primary, self.replica, self.retired = new, None, old
        self._open(died)
        return died, time.monotonic()

    def bring_back(self) -> None:
        """Start what was the primary, where nobody should write any more."""
        if self.retired is not None:
            self.retired.restart()
            self.retired.tell(READ_ONLY[self.family])
            self._retired_at = self.retired.ask(POSITION[self.family])[0][0]

    def lead_astray(self, proxy: Proxy, seconds: float) -> None:
        """Let a proxy lead to what was the primary for so long, as a name that is still remembered would."""
        if self.retired is not None:
            proxy.aim(self.retired.port)
            threading.Event().wait(seconds)
            proxy.aim(self.primary.port)

    def retire(self) -> None:
        """End what was the primary; that somebody has written there since is a failure."""
        if self.retired is not None and self._retired_at:
            at = self.retired.ask(POSITION[self.family])[0][0]
            if at != self._retired_at:
                self.failures.append(f"somebody wrote to the old primary: {self._retired_at} became {at}")
        self._end(self.retired)
        self.retired, self._retired_at = None, ""

    def set_back(self, copy: Path, look: Callable[[Node], None]) -> tuple[float, float]:
        """Kill the primary and start it on an older copy of its data; the times as of `promote`."""
        self._end(self.replica)  # it is ahead now
        self.replica = None
        self.struck = time.monotonic()
        self.primary.kill()
        died = time.monotonic()
        for proxy in (self.address, *self._also):
            proxy.aim(None)  # nobody writes before the look
        self.primary.set_back(copy)
        self.primary.restart()
        look(self.primary)
        self._open(died)
        return died, time.monotonic()

    def _open(self, died: float) -> None:
        threading.Event().wait(max(0.0, died + FAILS_OVER_WITHIN - time.monotonic()))
        for proxy in (self.address, *self._also):
            proxy.aim(self.primary.port)

    def _replica(self) -> Node:
        if self.replica is None:
            raise RuntimeError("there is no replica")
        return self.replica

    def _follow(self, replica: Node) -> tuple[str, ...]:
        """The copy's own log shows what it has; everything after that comes from the primary."""
        at = f"'127.0.0.1', {{0}}_PORT={self.primary.port}, {{0}}_USER='root', {{0}}_PASSWORD='{self.primary.password}'"
        if self.family == "mariadb":
            (position,) = replica.ask(POSITION["mariadb"])[0]
            change = f"CHANGE MASTER TO MASTER_HOST={at.format('MASTER')}, MASTER_CONNECT_RETRY=1"
            return (f"SET GLOBAL gtid_slave_pos = '{position}'", f"{change}, MASTER_USE_GTID=slave_pos")
        change = f"CHANGE REPLICATION SOURCE TO SOURCE_HOST={at.format('SOURCE')}, SOURCE_CONNECT_RETRY=1"
        return (f"{change}, SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",)

    def _equip(self, node: Node) -> None:
        disk = self.give_disk(node)
        if disk is not None:
            self._disks[node.number] = disk

    def _end(self, node: Node | None) -> None:
        if node is None:
            return
        node.kill()
        disk = self._disks.pop(node.number, None)
        if disk is not None:
            disk.close()
        node.stop()


def remove(copy: Path) -> None:
    """Remove a copy of a server's data, if it is there."""
    shutil.rmtree(copy, ignore_errors=True)
