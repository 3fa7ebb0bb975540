"""The faults of a chaos run that are the server's: it is replaced, set back, stands still, has another time or no room.

Owns how each is done, and what is read from a server before anybody may write to it; it never judges what follows.
The nemesis calls it, one fault after the other.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import define, evolve, field

from chaos import database
from chaos.fleet import Fleet
from chaos.history import Event, Fault, Loss
from chaos.node import PATIENCE, Node
from chaos.pair import Pair, remove
from chaos.proxy import Proxy, ports
from chaos.schedule import RETURNING, WATCHED, Planned
from chaos.sessions import kill_account
from support.sql import rows

TOGETHER: Final = 0.5
"""The chance that primary and replica were started in the same second."""

REVOKE: Final = "REVOKE INSERT, UPDATE, DELETE ON {database}.queue_subscriber_heartbeats FROM '{user}'@'%'"
GRANT: Final = "GRANT INSERT, UPDATE, DELETE ON {database}.queue_subscriber_heartbeats TO '{user}'@'%'"

HOUR: Final = 3600

SHORTAGES: Final = (
    ("ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {few}", "ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS 0"),
    ("ALTER USER '{user}'@'%' ACCOUNT LOCK", "ALTER USER '{user}'@'%' ACCOUNT UNLOCK"),
    ("SET GLOBAL max_connections = {few}", "SET GLOBAL max_connections = {before}"),
)
"""How connections become few, and how there are enough again."""

FEW: Final = 10, 24
"""Connections that are left: some processes have all that they need, and others have not."""

LAGS: Final = 0.5
"""The chance that a replica to which connections lead falls behind."""

CUTS_EVERY: Final = 2.0
"""Seconds between two cuts of half the connections: a client has settled on one server soon after the first."""

STORM: Final = 10.0
"""Connections of one process each second that are too many: three make some 15 together, and 30 to 60 if their loops
follow each other from one server to the other."""


@define(eq=False)
class ServerFaults:
    """Carries them out; each gives what happened, the fault itself first."""

    pair: Pair
    fleet: Fleet
    proxy: Proxy
    user: str
    """The account of workers and publishers."""
    publishers: tuple[str, ...]
    """Those behind the proxy."""
    went_back: Callable[[], None] = lambda: None
    """Called when the server has lost commits and the address leads on."""
    say: Callable[[str], None] = lambda _: None
    _never: threading.Event = field(factory=threading.Event, init=False)

    def do(self, planned: Planned) -> list[Event]:
        """Carry out one fault."""
        did: list[Event] = getattr(self, f"_{planned.kind.replace('-', '_')}")(planned)
        return did

    # -- the server is another one ---------------------------------------------------------------------------------

    def _promote(self, planned: Planned) -> list[Event]:
        """The primary dies before its replica has its last commits, and the replica takes its place."""
        began = time.monotonic()
        self.pair.replicate()
        beside: list[Event] = [Fault(kind="copy", start=began, end=time.monotonic())]
        if random.Random(planned.seed).random() < TOGETHER:
            start = time.monotonic()
            self.pair.restart_both()
            beside.append(Fault(kind="server", start=start, end=time.monotonic()))
            self._never.wait(WATCHED)  # what the restart did is not to be taken for what the failover does
        held = self.pair.hold_back()
        self._never.wait(planned.hold)
        kept: list[Event] = []
        died, opened = self.pair.promote(partial(self._seen, kept))
        lost = self._lost("promote", held, died, opened, kept)
        self._watch(self.pair.bring_back)
        start = time.monotonic()
        self.pair.lead_astray(self.proxy, planned.hold)
        met = self.fleet.proxied() + self.publishers
        return [*lost, *beside, Fault(kind="astray", start=start, end=time.monotonic(), processes=met)]

    def _restore(self, planned: Planned) -> list[Event]:
        """The machine of the server is set back to what it was some seconds ago."""
        copy = self.pair.primary.directory / "copy"
        try:
            held = time.monotonic()
            self.pair.primary.copy_to(copy)
            copied = time.monotonic()
            self._never.wait(planned.hold)
            kept: list[Event] = []
            died, opened = self.pair.set_back(copy, partial(self._seen, kept))
        finally:
            remove(copy)
        lost = self._lost("restore", held, died, opened, kept)
        return [*lost, Fault(kind="copy", start=held, end=copied), *self._watch()]

    def _seen(self, kept: list[Event], node: Node) -> None:
        """What the server has before anybody can reach it; from here on it is another one for everybody."""
        kept.extend(database.survived(node.url))
        self.went_back()

    def _lost(self, kind: str, held: float, died: float, opened: float, kept: list[Event]) -> list[Event]:
        loss = Loss(kind=kind, held=held, died=died, opened=opened)  # type: ignore[arg-type]
        of_it = [evolve(each, loss=opened) for each in kept]  # type: ignore[misc]
        return [Fault(kind=kind, start=self.pair.struck, end=opened), loss, *of_it]  # type: ignore[arg-type]

    def _watch(self, meanwhile: Callable[[], None] = lambda: None) -> list[Event]:
        """No other fault comes until the time is over in which everything has to move again."""
        until = time.monotonic() + WATCHED
        meanwhile()
        self._never.wait(max(0.0, until - time.monotonic()))
        return []

    def _restarts(self, planned: Planned) -> list[Event]:
        """Two restarts in a row, the second while everybody comes back from the first."""
        start = time.monotonic()
        for _ in range(2):
            self.pair.kill()
            self.pair.restart()
            end = time.monotonic()
            self._never.wait(planned.hold)
        return [Fault(kind="restarts", start=start, end=end)]

    # -- it is the same, and does not seem so ----------------------------------------------------------------------

    def _freeze(self, planned: Planned) -> list[Event]:
        start = time.monotonic()
        with self.pair.primary.standing_still():
            self._never.wait(planned.hold)
        fault = Fault(kind="freeze", start=start, end=time.monotonic())
        return [fault, *self._watch()]

    def _step(self, planned: Planned) -> list[Event]:
        """The server's clock goes wrong by an hour, and right again."""
        start = time.monotonic()
        self.pair.primary.set_clock(random.Random(planned.seed).choice((-HOUR, HOUR)))
        try:
            self._never.wait(planned.hold)
        finally:
            self.pair.primary.set_clock(0)
        return [Fault(kind="step", start=start, end=time.monotonic()), *self._watch()]

    def _revoke(self, planned: Planned) -> list[Event]:
        """Nobody may write heartbeats, for less than a lease."""
        names = {"database": "lanelog", "user": self.user}
        start = time.monotonic()
        self.pair.primary.tell(REVOKE.format(**names))
        try:
            self._never.wait(planned.hold)
        finally:
            self.pair.primary.tell(GRANT.format(**names))
        return [Fault(kind="revoke", start=start, end=time.monotonic())]

    # -- connections -----------------------------------------------------------------------------------------------

    def _shortage(self, planned: Planned) -> list[Event]:
        """Everybody loses all connections, and there are fewer than are needed, or none."""
        dice = random.Random(planned.seed)
        lowered, raised = dice.choice(SHORTAGES)
        (before,) = self.pair.primary.ask("SELECT @@GLOBAL.max_connections")[0]
        names = {"user": self.user, "few": dice.randint(*FEW), "before": before}
        start = time.monotonic()
        with database.connect(self.pair.primary.url, PATIENCE) as control:  # kept: another one may be refused by now
            rows(control, lowered.format(**names))
            try:
                kill_account(control, self.user)
                self._never.wait(planned.hold)
            finally:
                rows(control, raised.format(**names))
        fault = Fault(kind="shortage", start=start, end=time.monotonic())
        self._never.wait(RETURNING)
        return [fault]

    def _alternate(self, planned: Planned) -> list[Event]:
        """New connections lead to the primary and to its replica by turns, and half of all are cut again and again."""
        dice, began = random.Random(planned.seed), time.monotonic()
        self.pair.replicate()
        copied = time.monotonic()
        if dice.random() < LAGS:
            self.pair.hold_back()
        else:
            self.pair.catch_up()
        met, before, start = self.fleet.proxied() + self.publishers, self.proxy.accepted, time.monotonic()
        cuts = []
        self.pair.balance(self.proxy)
        try:
            while (left := start + planned.hold - time.monotonic()) > 0:
                cut = time.monotonic()
                self.proxy.cut(dice)
                cuts.append(Fault(kind="cut", start=cut, end=time.monotonic(), processes=met))
                self._never.wait(min(left, CUTS_EVERY))
        finally:
            there = self.pair.lead_back(self.proxy)
        fault = Fault(kind="alternate", start=start, end=time.monotonic(), processes=met)
        made = f"{self.proxy.accepted - before} connections in {fault.end - fault.start:.1f} s, by turns"
        self.say(f"{made}; {there} lead to the replica still")
        if self.proxy.accepted - before > STORM * (fault.end - fault.start) * len(met):
            self.pair.failures.append(f"a storm of {made}")
        self._never.wait(RETURNING)
        self.pair.dismiss()
        return [fault, Fault(kind="copy", start=began, end=copied), *cuts]

    # -- a worker's machine ----------------------------------------------------------------------------------------

    def _vanish(self, planned: Planned) -> list[Event]:
        """A worker and its machine are gone; the server is never told, and keeps its sessions."""
        worker = self.fleet.workers[planned.victim]
        os.kill(worker.process.pid, signal.SIGSTOP)  # it must not see that its connections are gone
        start = time.monotonic()
        proxy = self.proxy if worker.proxied else self.pair.address
        proxy.vanish(ports(worker.process.pid))
        self.fleet.kill(planned.victim)
        end = time.monotonic()
        self.fleet.replace(planned.victim, planned.clock)
        self._never.wait(planned.hold)
        return [Fault(kind="vanish", start=start, end=end, processes=(worker.name,))]
