"""The operator of a chaos run: seeks, pauses, retries, redrives and more by `client.admin`, while everything breaks.

Owns one thread and a client of its own, and writes down what it did; it never looks at what becomes of it, nor breaks
anything itself. The stage starts it beside the nemesis.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from attrs import define, evolve, field

import lanelog
from chaos import database
from chaos.history import Journal, Redriven, Steer
from chaos.schedule import Operation
from chaos.worker import EFFECTS, RECORDS, TOPIC
from lanelog.admin import Admin
from lanelog.errors import ConfigurationError, DatabaseError

PATIENCE: Final = 4.0
"""Seconds in which a verb has to succeed; less than an outage lasts, so that some have an unknown outcome."""

AGAIN: Final = 0.2
PAUSED: Final = "SELECT partition_key FROM queue_offsets WHERE consumer_group = %s AND topic = %s AND paused_at > 0"
WAITING: Final = """SELECT partition_key FROM queue_delivery_state WHERE consumer_group = %s AND topic = %s
AND acked = 0 AND invisible_until > ROUND(UNIX_TIMESTAMP(NOW(3)) * 1000) LIMIT 20"""
BUSY: Final = 20
"""So many lanes, those with most to do, are the choice for a release or a skip."""


@define(eq=False)
class Operator:
    """A context manager: at its end the operation under way is finished, and whatever was paused goes on."""

    url: str
    journal: Journal
    say: Callable[[str], None]
    operations: tuple[Operation, ...]
    failures: list[str] = field(factory=list, init=False)
    went_back: threading.Event = field(factory=threading.Event, init=False)
    """Set when the server has lost commits: a pause that was taken back may be there again."""
    _over: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)
    _known: set[tuple[str, int, int]] = field(factory=set, init=False)
    """Redriven messages that were written down: key, offset, and how often the server had lost commits by then."""
    _losses: int = field(default=0, init=False)

    def forget(self) -> None:
        """The server is about to go on without its last commits: offsets and ids are given out once more."""
        self._losses += 1
        self.went_back.set()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        if self._thread.is_alive():
            self.failures.append("the operator is stuck")

    def _run(self) -> None:
        try:
            with lanelog.connect(self.url, publish_timeout=PATIENCE) as client:
                for operation in self.operations:
                    if self._over.wait(operation.rest):
                        break
                    self._resume_again(client.admin)
                    with suppress(ConfigurationError):  # there is no such lane, or no group, yet
                        getattr(self, f"_{operation.verb}")(client.admin, operation)
                self._over.wait()
                self._resume_again(client.admin)
        except Exception as error:  # noqa: BLE001 - the run has to hear of it, whatever it is
            self.failures.append(f"the operator failed: {error!r}")

    def _seek(self, admin: Admin, operation: Operation) -> None:
        """Bring the last messages of a lane back. Only ever backwards: nobody may miss anything by it."""
        place = self._place(admin, operation)
        if place is None:
            return
        group, key, watermark = place
        to = max(1, watermark + 1 - operation.back)
        done, steer = self._try("seek", lambda: admin.seek(TOPIC, group, key=key, to=to, dry_run=False), group, key)
        if done is not None:
            moved = done.moved[0] if done.moved else None
            at = to - 1 if moved is None else moved.after
            steer = evolve(steer, offset=at, before=at if moved is None else moved.before)
        self._note(steer, f"to {to}")

    def _release(self, admin: Admin, operation: Operation) -> None:
        """Take a lane in which something is to be done from its owner."""
        place = self._busy(admin, operation)
        if place is None:
            return
        group, key, _ = place
        done, steer = self._try("release", lambda: admin.release(TOPIC, group, key, dry_run=False), group, key)
        if done is None or done.changed:
            self._note(steer)
        for other in () if done is None else done.others:
            self._note(evolve(steer, key=other))

    def _skip(self, admin: Admin, operation: Operation) -> None:
        """Settle the next message of a lane in which there is one, for one group."""
        place = self._busy(admin, operation)
        if place is None:
            return
        group, key, watermark = place
        offset = watermark + 1
        done, steer = self._try(
            "skip", lambda: admin.skip(TOPIC, group, key, offset, reason="chaos", dry_run=False), group, key
        )
        if done is None or done.changed:
            self._note(evolve(steer, offset=offset), f"offset {offset}")

    def _retry(self, admin: Admin, operation: Operation) -> None:
        """Let what waits for its next attempt wait no longer, in a lane where something does."""
        group = _group(operation)
        found = self._asked(WAITING, group, TOPIC)
        if not found:
            return
        key = found[(operation.lane or 0) % len(found)][0]
        done, steer = self._try("retry", lambda: admin.retry(TOPIC, group, key, dry_run=False), group, key)
        if done is None or done.changed:
            self._note(steer)

    def _pause(self, admin: Admin, operation: Operation) -> None:
        group, key = _group(operation), None if operation.lane is None else f"k{operation.lane}"
        _, steer = self._try("pause", lambda: admin.pause(TOPIC, group, key=key, by="chaos"), group, key)
        self._over.wait(operation.hold)
        resumed = time.monotonic()
        while True:  # nothing may stay paused, or the run never ends
            done, _ = self._try("pause", lambda: admin.resume(TOPIC, group, key=key), group, key)
            if done is not None:
                break
        self._note(evolve(steer, until=resumed), f"for {resumed - steer.end:.1f} s")

    def _resume_again(self, admin: Admin) -> None:
        """Nothing may stay paused because the server has forgotten that it was resumed."""
        if not self.went_back.is_set():
            return
        self.went_back.clear()
        for group in (EFFECTS, RECORDS):
            places = [None, *(key for (key,) in self._asked(PAUSED, group, TOPIC))]
            for key in places:
                while self._try("pause", partial(admin.resume, TOPIC, group, key=key), group, key)[0] is None:
                    self._pause_between()

    def _asked(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """What the database says, asked until it says something."""
        while True:
            try:
                return database.rows(self.url, sql, *args)
            except Exception:  # noqa: BLE001 - the nemesis is at work
                self._pause_between()

    def _redrive(self, admin: Admin, operation: Operation) -> None:
        group = _group(operation)
        _, steer = self._try("redrive", lambda: admin.redrive(TOPIC, group, all=True, dry_run=False), group, None)
        new = self._redriven()
        self.journal.write(*new)
        self._note(steer, f"{len(new)} dead letters")

    def _redriven(self) -> list[Redriven]:
        """What has come back: read at once, before it is handled and collected."""
        while True:
            try:
                found = database.redriven(self.url)
            except Exception:  # noqa: BLE001 - the nemesis is at work
                self._pause_between()
                continue
            # Counted behind the look: what is found on the server before may be written down twice, never not at all.
            new = {(each.key, each.offset, self._losses): each for each in found}
            told = [each for place, each in new.items() if place not in self._known]
            self._known |= new.keys()
            return told

    def _try(self, verb: str, act: Callable[[], Any], group: str, key: str | None) -> tuple[Any | None, Steer]:
        """Do it; None when nobody knows whether it was done."""
        start, done = time.monotonic(), None
        with suppress(DatabaseError):
            done = act()
        return done, Steer(
            verb=verb,  # type: ignore[arg-type]
            group=group,
            topic=TOPIC,
            key=key,
            start=start,
            end=time.monotonic(),
            certain=done is not None,
        )

    def _place(self, admin: Admin, operation: Operation) -> tuple[str, str, int] | None:
        """Group, key and watermark of a lane that the group has reached; None: not yet, or it cannot be asked now."""
        group, key = _group(operation), f"k{operation.lane}"
        try:
            found = admin.offsets(TOPIC, group, key)
        except DatabaseError:
            return None
        return (group, key, found[0].watermark) if found and found[0].watermark else None

    def _busy(self, admin: Admin, operation: Operation) -> tuple[str, str, int] | None:
        """The same of a lane in which messages wait; None: there is none, or it cannot be asked now."""
        group = _group(operation)
        try:
            lanes = [lane for lane in admin.lanes(TOPIC, group, order_by="lag", limit=BUSY) if lane.lag]
        except DatabaseError:
            return None
        chosen = lanes[(operation.lane or 0) % len(lanes)] if lanes else None
        return (group, chosen.key, chosen.watermark) if chosen else None

    def _note(self, steer: Steer, detail: str = "") -> None:
        self.journal.write(steer)
        outcome = "" if steer.certain else ", outcome unknown"
        self.say(f"operator: {steer.verb} {steer.group} {steer.key or ''} {detail}{outcome}")

    def _pause_between(self) -> None:
        threading.Event().wait(AGAIN)


def _group(operation: Operation) -> str:
    return (EFFECTS, RECORDS)[operation.group]
