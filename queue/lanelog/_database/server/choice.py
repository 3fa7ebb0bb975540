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
from lanelog._database import codes
from lanelog._database.locking import taking
from lanelog._database.server.incarnation import Incarnation
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
class Question:
    """What all hosts are asked.

    It goes on when a caller with little time has left. Otherwise each of them would ask a silent host anew, and no host
    would ever be chosen.
    """

    until: float
    """When (monotonic) it ends: a host that is silent until then counts as dead."""
    answers: queue.SimpleQueue[Said] = field(factory=queue.SimpleQueue)
    found: dict[Address, Said] = field(factory=dict)


@define(eq=False)
class ChosenHost:
    """The answer to one question. It is replaced whole: an interrupt leaves the one before or the next one."""

    address: Address
    number: int
    """How often another host was chosen."""
    asked: int
    """The number of the question, which counts also when the same host is chosen again."""
    left: bool = False
    """The host has failed since."""
    incarnation: Incarnation | None = None
    """The server that the first connection met there. Another one at the same address may be the old primary, back."""


@define(eq=False)
class HostChoice:
    """The host of one client. Thread-safe.

    What if the chosen host dies while others choose: they find it dead at their first connection, and it is left. What
    if it was left because of one lost connection: it is asked like the others, and may be chosen again; then the other
    connections to it stay, and their failures count for the question before. What if two hosts are the primary, as
    after a failover that left the old one running: none is used, not even by connections that are there, because what
    is written on the wrong one is lost.
    """

    addresses: tuple[Address, ...]
    seconds: float
    """For how long hosts are asked: a host that answers later counts as dead, whoever asks."""
    ask: Callable[[Address], str]
    """Returns why a host is not the primary, or an empty text. Raises if the host does not answer."""
    _chosen: ChosenHost | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)  # there were several primaries
    _failed: tuple[float, LanelogError] | None = field(default=None, init=False)  # when (monotonic) none was found
    _question: Question | None = field(default=None, init=False)  # that nobody has waited for to its end
    _told: frozenset[Address] = field(default=frozenset(), init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    @property
    def several(self) -> bool:
        """Whether there is a choice."""
        return len(self.addresses) > 1

    def current(self, *, choosing: bool = True) -> ChosenHost:
        """Return the choice for new connections. Choose, if no host is chosen or the chosen one has failed.

        `choosing`: False for a caller that must not wait so long and writes nothing: it gets the last choice. One
        thread asks the hosts, and the others wait for it, each for as long as it may. Raises DatabaseError if none or
        several can be used, and ConfigurationError if no host was ever chosen and the settings are wrong.
        """
        chosen = self._chosen
        if not self.several:
            return ChosenHost(self.addresses[0], 0, 0)
        if chosen is not None and not (choosing and chosen.left):
            return chosen
        if not choosing:
            raise DatabaseError("no host is chosen yet", retriable=True)
        began = time.monotonic()
        with taking(self._lock, seconds=at_most(self.seconds * 2)) as mine:
            if not mine:
                raise DatabaseError("another thread still asks the hosts which is the primary", retriable=True)
            chosen = self._chosen
            if chosen is not None and not chosen.left:
                return chosen
            if self._failed is not None and self._failed[0] > began:
                raise _again(self._failed[1])  # another thread has asked meanwhile
            return self._choose_again()

    def check_same(self, chosen: ChosenHost, incarnation: Incarnation) -> None:
        """Raise DatabaseError if a new connection has met another server than the first one of this choice.

        A primary that crashed may be back, writable, when another host has been promoted.
        """
        if chosen.incarnation is None:
            chosen.incarnation = incarnation
        if not chosen.incarnation.same(incarnation):
            raise DatabaseError("another server than before answers: all hosts are asked again", retriable=True)

    def stands(self, server: ServerFacts | None) -> bool:
        """Whether a connection to this server still leads to the chosen host."""
        if server is None or not self.several:
            return True
        chosen = self._chosen
        return chosen is not None and server.choice == chosen.number and not self._refused

    def address(self, number: int) -> Address:
        """Return the host of this choice. Raises ConfigurationError if another one was chosen since."""
        if not self.several:
            return self.addresses[0]
        chosen = self._chosen
        if chosen is None or chosen.number != number:
            raise ConfigurationError("the connection leads to a host that was left")
        return chosen.address

    def leave(self, asked: int) -> None:
        """A connection that was made after this question has failed: the next one asks all hosts. Never waits."""
        chosen = self._chosen
        if chosen is not None and chosen.asked == asked:
            chosen.left = True

    def abandon(self) -> None:
        """In a forked child: a thread that is gone may hold the lock, and those that ask are gone."""
        self._lock = threading.Lock()
        self._question = None

    def _choose_again(self) -> ChosenHost:
        try:
            address = self._choose(self._asked())
        except LanelogError as error:
            self._failed = (time.monotonic(), _again(error))  # without its traceback, which holds what callers send
            raise
        before = self._chosen
        same = before is not None and before.address == address
        number, asked = (0, 0) if before is None else (before.number, before.asked)
        chosen = ChosenHost(address, number if same else number + 1, asked + 1)
        self._chosen, self._refused = chosen, False
        if not same:
            facts.host_chosen(host=str(address), instead_of="" if before is None else str(before.address))
        return chosen

    def _asked(self) -> list[Said]:
        """Ask all hosts, or go on with a question that an earlier caller had no time to wait for."""
        now = time.monotonic()
        question = self._question
        if question is None or now > question.until + self.seconds:  # the answers of an older one are out of date
            question = self._question = Question(now + self.seconds)
            for address in self.addresses:
                arguments = (address, self.ask, question.answers.put)
                try:
                    threading.Thread(target=_answer, args=arguments, name="lanelog-hosts", daemon=True).start()
                except RuntimeError:  # the system has no thread left, or the interpreter ends
                    _answer(*arguments)
        patience = now + at_most(self.seconds)
        while len(question.found) < len(self.addresses):
            now, until = time.monotonic(), min(question.until, patience)
            try:
                answer = question.answers.get(timeout=max(0.0, until - now))
            except queue.Empty:
                if patience < question.until:
                    raise DatabaseError("the hosts have not yet said which is the primary", retriable=True) from None
                break
            question.found[answer.address] = answer
        self._question = None
        silent = DatabaseError(f"no answer within {self.seconds:g} s", retriable=True)
        return [question.found.get(address, Said(address, error=silent)) for address in self.addresses]

    def _choose(self, answers: list[Said]) -> Address:
        primaries = [answer.address for answer in answers if not answer.why and answer.error is None]
        before = None if self._chosen is None else self._chosen.address
        full = [answer for answer in answers if isinstance(answer.error, DatabaseError) and _is_full(answer.error)]
        if len(primaries) == 1 and (primaries[0] == before or before not in {answer.address for answer in full}):
            self._told = frozenset()
            return primaries[0]
        if len(primaries) > 1:
            self._refused = True
            both = " and ".join(map(str, primaries))
            if self._told != frozenset(primaries):  # loops ask every second
                self._told = frozenset(primaries)
                facts.hosts_two_primaries(hosts=[str(address) for address in primaries], remedy=_REMEDY)
            raise DatabaseError(f"{both} are both a primary, so none is used: {_REMEDY}", retriable=True)
        if full and full[0].error is not None:
            raise full[0].error  # it lives, and may be the primary: others give connections up by its number
        said = "; ".join(f"{answer.address}: {answer.why or answer.error}" for answer in answers)
        errors = [answer.error for answer in answers if answer.error is not None]
        away = any(error.retriable for error in errors)
        refusals = [error for error in errors if isinstance(error, ConfigurationError)]
        if refusals and before is None and not away:
            raise refusals[0]  # all have answered, so it is the settings that hide the primary
        passing = away or len(errors) < len(answers) or before is not None
        raise DatabaseError(f"no host is a primary ({said})", retriable=passing)


def _is_full(error: DatabaseError) -> bool:
    return error.code in codes.TOO_MANY


def _again(error: LanelogError) -> LanelogError:
    """Return the same error once more: each thread changes the one that it gets, and adds its frames."""
    if isinstance(error, DatabaseError):
        return DatabaseError(str(error), code=error.code, retriable=error.retriable)
    return ConfigurationError(str(error))


def _answer(address: Address, ask: Callable[[Address], str], put: Callable[[Said], None]) -> None:
    try:
        put(Said(address, why=ask(address)))
    except Exception as exc:  # noqa: BLE001 - whatever a host says, the others are asked
        put(Said(address, error=translate(exc)))
