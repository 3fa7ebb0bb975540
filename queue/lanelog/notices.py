"""Notices: what the engine of a client reports to the program itself, such as a message that became a dead letter.

Owns their queue, and the one thread that calls the program's functions. Decides nothing: `_facts` declares which facts
are notices. The engine notifies without waiting, and a notice that finds the queue full is dropped and counted. What
must not be missed stands in the database: `client.admin` has it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Final, get_args

from attrs import define, field, frozen

from lanelog._facts import client as facts
from lanelog._facts import fact
from lanelog._facts.fact import ErrorText, Fields
from lanelog.errors import ClosedError, ConfigurationError

NoticeName = fact.NoticeName
"""What a program can be notified of."""
NAMES: Final[frozenset[str]] = frozenset(get_args(NoticeName))
ROOM: Final = 1000
"""Notices that wait for the program. The next one is dropped."""
LAST_NOTICES: Final = 5.0
"""Seconds that the end of a client waits for its last notices to be taken."""
_NAMES_OF_A_MESSAGE: Final = ("key", "offset", "attempt")


def _now() -> datetime:
    return datetime.now(UTC)


@frozen(kw_only=True)
class Notice:
    """One thing that the engine of this process has just seen or done. Never a payload."""

    name: NoticeName
    topic: str
    group: str
    key: str | None = None
    """None: it is about the group, not about one lane."""
    offset: int | None = None
    """None: it is about the lane or the group, not about one message."""
    attempt: int | None = None
    """The number of the attempt. None: as `offset`."""
    error: str | None = None
    """Type and text of the error, or the reason, as the log event of the same moment says it."""
    at: datetime = field(factory=_now)
    """When, by this process's clock."""


Callback = Callable[[Notice], object]


@define(eq=False)
class Listener:
    """A function that receives notices of one name."""

    name: NoticeName
    call: Callback
    dropped: int = field(default=0, init=False)
    """Notices that it has missed because too many waited."""
    _remove: Callable[[Listener], None] = field(repr=False, kw_only=True)

    def stop(self) -> None:
        """Send it nothing more. Idempotent. A call that has begun is not waited for."""
        self._remove(self)


@define(eq=False)
class Notices:
    """The notices of one client in one process."""

    room: int = ROOM
    wanted: dict[str, tuple[Listener, ...]] = field(factory=dict, init=False)
    """Listeners by name. It is replaced, not changed, so the engine reads it without a lock."""
    _queue: queue.Queue[Notice | None] = field(init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _counting: threading.Lock = field(factory=threading.Lock, init=False)
    """Held for some additions alone, never together with another lock: `put` must not wait."""

    def __attrs_post_init__(self) -> None:
        self._queue = queue.Queue(self.room)

    def on(self, name: NoticeName, call: Callback) -> Listener:
        """See `Client.on`."""
        if name not in NAMES:
            raise ConfigurationError(f"no notice is named {name!r}: there are {', '.join(sorted(NAMES))}")
        if not callable(call):
            raise ConfigurationError(f"call must be a function that takes a Notice, not {call!r}")
        listener = Listener(name, call, remove=self._remove)
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed: connect again")
            self.wanted = {**self.wanted, name: (*self.wanted.get(name, ()), listener)}
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="lanelog-notices", daemon=True)
                self._thread.start()
        return listener

    def _remove(self, listener: Listener) -> None:
        with self._lock:
            left = tuple(each for each in self.wanted.get(listener.name, ()) if each is not listener)
            self.wanted = {name: found for name, found in self.wanted.items() if name != listener.name}
            if left:
                self.wanted[listener.name] = left

    def notify(self, name: NoticeName, fields: Fields, error: ErrorText) -> None:
        """Make a notice of a fact, if it is wanted. It never waits, so it may be called under the engine's locks."""
        if name in self.wanted:
            known = {each: fields[each] for each in _NAMES_OF_A_MESSAGE if each in fields}
            self.put(Notice(name=name, topic=fields["topic"], group=fields["group"], error=error(fields), **known))

    def put(self, notice: Notice) -> None:
        """Queue a notice that is wanted. It never waits, so it may be called under the engine's locks."""
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            with self._counting:
                for listener in self.wanted.get(notice.name, ()):
                    listener.dropped += 1

    def close(self, timeout: float = LAST_NOTICES) -> None:
        """Call the functions for what waits, and end the thread. Idempotent.

        A function that does not return within `timeout` keeps its thread until the process ends.
        """
        with self._lock:
            first, self._closed = not self._closed, True
            thread = self._thread
        if thread is None or not first:
            return
        try:
            self._queue.put(None, timeout=timeout if thread is not threading.current_thread() else 0)
        except queue.Full:
            self.wanted = {}  # what waits is dropped, and the thread ends after it
        if thread is not threading.current_thread():
            thread.join(timeout)

    def _loop(self) -> None:
        while True:
            try:
                notice = self._queue.get(timeout=1.0 if self._closed else None)
            except queue.Empty:
                return  # the end found no room in the queue
            if notice is None:
                return
            for listener in self.wanted.get(notice.name, ()):
                try:
                    copy_context().run(listener.call, notice)  # what it sets there is not the next notice's
                except BaseException:  # noqa: BLE001 - it is logged with its traceback
                    facts.listener_failed(notice=notice.name, topic=notice.topic, group=notice.group, exc_info=True)
