"""Which of the hosts in a URL the connections of one client lead to: all to the same one, until it fails.

Owns the choice, and nothing of a connection: `driver` asks each host, and says when one has failed. With one host there
is nothing to choose.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from attrs import define, field, frozen

from lanelog._base.addresses import Address
from lanelog._database.server.server_facts import ServerFacts
from lanelog._database.time_left import at_most
from lanelog._database.translation import translate
from lanelog._facts import database as facts
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError

_REMEDY = "make all but one of them read-only, or take them out of the URL"


@frozen
class Said:
    """What one host has said."""

    address: Address
    why: str = ""
    """Why it is not the primary. Empty: it is."""
    error: LanelogError | None = None
    """Why it could not be asked."""


@define(eq=False)
class HostChoice:
    """The host of one client. Thread-safe.

    What if the chosen host dies while others choose: they find it dead at their first connection, and it is left. What
    if it was left because of one lost connection: it is asked like the others, and may be chosen again; then the other
    connections to it stay. What if two hosts are the primary, as after a failover that left the old one running: none
    is used, because what is written on the wrong one is lost.
    """

    addresses: tuple[Address, ...]
    seconds: float
    """For how long hosts are asked: who answers later is taken for dead."""
    number: int = field(default=0, init=False)
    """How often another host was chosen. A connection of an earlier number leads to another host."""
    _chosen: Address | None = field(default=None, init=False)
    _before: Address | None = field(default=None, init=False)
    _told: frozenset[Address] = field(default=frozenset(), init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    @property
    def several(self) -> bool:
        """Whether there is a choice."""
        return len(self.addresses) > 1

    def current(self, ask: Callable[[Address], str]) -> tuple[Address, int]:
        """Return the host of new connections, and the number of the choice. Choose one, if none is chosen.

        `ask`: returns why a host is not the primary, or an empty text; it raises if the host does not answer. Each host
        is asked in a thread of its own. Raises DatabaseError if none or several can be used, and ConfigurationError if
        no host was ever chosen and the settings are wrong.
        """
        if not self.several:
            return self.addresses[0], 0
        with self._lock:
            if self._chosen is None:
                self._chosen = self._choose(self._asked(ask))
                if self._chosen != self._before:
                    facts.host_chosen(host=str(self._chosen), instead_of=str(self._before or ""))
                    self._before = self._chosen
                    self.number += 1
            return self._chosen, self.number

    def stands(self, server: ServerFacts | None) -> bool:
        """Whether a connection to this server still leads to the chosen host."""
        return server is None or server.choice == self.number

    def address(self, number: int) -> Address:
        """Return the host of this choice. Raises ConfigurationError if another one was chosen since."""
        with self._lock:
            if number == self.number:
                return self._before or self.addresses[0]
        raise ConfigurationError("the connection leads to a host that was left")

    def leave(self, number: int) -> None:
        """The host of this choice has failed: the next connection asks all of them."""
        with self._lock:
            if number == self.number:
                self._chosen = None

    def abandon(self) -> None:
        """In a forked child: a thread that is gone may hold the lock."""
        self._lock = threading.Lock()

    def _asked(self, ask: Callable[[Address], str]) -> list[Said]:
        answers: queue.SimpleQueue[Said] = queue.SimpleQueue()
        for address in self.addresses:
            threading.Thread(
                target=_answer, args=(address, ask, answers.put), name="lanelog-hosts", daemon=True
            ).start()
        until = time.monotonic() + at_most(self.seconds)
        found: dict[Address, Said] = {}
        while len(found) < len(self.addresses):
            try:
                answer = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            found[answer.address] = answer
        silent = DatabaseError(f"no answer within {self.seconds:g} s", retriable=True)
        return [found.get(address, Said(address, error=silent)) for address in self.addresses]

    def _choose(self, answers: list[Said]) -> Address:
        primaries = [answer.address for answer in answers if not answer.why and answer.error is None]
        if len(primaries) == 1:
            self._told = frozenset()
            return primaries[0]
        if primaries:
            both = " and ".join(map(str, primaries))
            if self._told != frozenset(primaries):  # loops ask every second
                self._told = frozenset(primaries)
                facts.hosts_two_primaries(hosts=[str(address) for address in primaries], remedy=_REMEDY)
            raise DatabaseError(f"{both} are both a primary, so none is used: {_REMEDY}", retriable=True)
        said = "; ".join(f"{answer.address}: {answer.why or answer.error}" for answer in answers)
        refusals = [answer.error for answer in answers if isinstance(answer.error, ConfigurationError)]
        if refusals and self._before is None:
            raise refusals[0]
        retriable = self._before is not None or any(
            answer.error is None or answer.error.retriable for answer in answers
        )
        raise DatabaseError(f"no host is a primary ({said})", retriable=retriable)


def _answer(address: Address, ask: Callable[[Address], str], put: Callable[[Said], None]) -> None:
    try:
        put(Said(address, why=ask(address)))
    except Exception as exc:  # noqa: BLE001 - whatever a host says, the others are asked
        put(Said(address, error=translate(exc)))
