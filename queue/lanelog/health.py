"""What `client.health()` reports: whether the loops of this process run, and whether it can work.

Owns the values, and what they mean for the probes of an orchestrator. Reads nothing itself.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

_HANDLING: Final = ("fetcher", "settler")
"""The loops without which no message is handled. The keeper's errors are the database's."""


@frozen(kw_only=True)
class LoopHealth:
    """One background loop. All numbers are seconds."""

    name: str
    turned: float | None
    """Seconds since its last run began. None: it has not run yet."""
    waits: float | None
    """Seconds for which it has waited for an answer of the database. None: it does not wait for one."""
    late: bool
    """Whether it gave no sign of life for longer than its bound. Only a new process repairs that."""
    why: str
    """What it does instead of its run, or the error of its last run. Empty: all is well."""
    failing: bool = False
    """Whether its last run failed. It tries again."""


@frozen(kw_only=True)
class HeartbeatHealth:
    """The heartbeat of one topic and group, by which other processes know that this one lives."""

    topic: str
    group: str
    written: float | None
    """Seconds since it was last written. None: never."""
    fresh: bool
    """Whether the leases of this process are sure: it was written less than `lease_duration` ago."""
    why: str
    """Why it was not written, if an error is known. It may be there while the last one is still fresh."""


@frozen(kw_only=True)
class DatabaseHealth:
    """The database, as the loop asks it that keeps the leases: several times a second.

    Of a client that only publishes: as `client.health()` asks it, at most once in 5 s.
    """

    answered: float | None
    """Seconds since its last answer. None: it was never asked."""
    fresh: bool
    """Whether it answers."""
    why: str
    """Why not. Empty: it answers."""


@frozen(kw_only=True)
class ConnectionHealth:
    """A connection that this process has lacked for so long that others have its lanes, until it has all it needs."""

    purpose: str
    """`fetcher`: it reads messages. `settler`: it writes outcomes."""
    seconds: float
    """Seconds for which it has been missing."""
    why: str
    """Why the server refused it. Empty: it is asked for when the others are there."""


@frozen(kw_only=True)
class SubscriptionHealth:
    """One subscription of this process."""

    group: str
    topics: tuple[str, ...]
    registered: bool
    """Whether it is registered and works, or is paused."""
    why: str
    """Why not. Empty: it is."""
    hung: str = ""
    """What makes this process unhealthy: all workers have been busy for too long, see the option `unhealthy_after`.

    Empty: nothing.
    """


@frozen(kw_only=True)
class Health:
    """A client at one moment.

    Example::

        if not client.health().live:
            sys.exit("; ".join(client.health().dying))
    """

    loops: tuple[LoopHealth, ...]
    """The background loops. Empty before the first subscription starts."""
    heartbeats: tuple[HeartbeatHealth, ...]
    """One for each topic and group that runs."""
    database: DatabaseHealth
    """Whether the database answers."""
    connections: tuple[ConnectionHealth, ...]
    """The connections for lack of which it handles nothing. Empty: it has them, or has lacked them only briefly."""
    tables: int
    """The version of the tables. 0: it was not read yet."""
    subscriptions: tuple[SubscriptionHealth, ...]
    """The subscriptions of this client that have not been stopped."""
    publishes_only: bool = False
    """Whether this client has never had a subscription. It is ready while the database answers."""

    @property
    def live(self) -> bool:
        """Whether every loop runs, and no subscription hangs for `unhealthy_after`.

        A database that is unavailable does not change that.
        """
        return not self.dying

    @property
    def dying(self) -> tuple[str, ...]:
        """Why this process should be replaced. Empty: it should not."""
        return tuple(f"loop {loop.name}: {loop.why}" for loop in self.loops if loop.late) + self.hung

    @property
    def hung(self) -> tuple[str, ...]:
        """Which groups have hung for their `unhealthy_after`, and for how long. Empty: none."""
        return tuple(f"group {each.group!r}: {each.hung}" for each in self.subscriptions if each.hung)

    @property
    def ready(self) -> bool:
        """Whether it can work.

        The database answers and has a connection for each loop that handling needs, its tables are known, all
        subscriptions are registered, and the loops that fetch and settle messages do not fail. A client that only
        publishes is ready if the database answers, and its tables are known.
        """
        return not self.lacking

    @property
    def lacking(self) -> tuple[str, ...]:
        """Why it cannot work now. Empty: it can."""
        found = [] if self.database.fresh else [f"database: {self.database.why}"]
        found += [f"connections: {_missing(each)}" for each in self.connections]
        if not self.tables:
            found.append("schema: the version of the tables was not read yet")
        found += [f"loop {loop.name}: {loop.why}" for loop in self.loops if loop.failing and loop.name in _HANDLING]
        found += [f"group {each.group!r}: {each.why}" for each in self.subscriptions if not each.registered]
        if not self.subscriptions and not self.publishes_only:
            found.append("no subscription")
        found += [
            f"group {each.group!r} of topic {each.topic!r}: {_unwritten(each)}"
            for each in self.heartbeats
            if not each.fresh
        ]
        return tuple(found)


def _missing(connection: ConnectionHealth) -> str:
    why = f": {connection.why}" if connection.why else ""
    return f"the {connection.purpose} has had none for {connection.seconds:.1f} s, so others have the lanes{why}"


def _unwritten(heartbeat: HeartbeatHealth) -> str:
    why = f": {heartbeat.why}" if heartbeat.why else ""
    if heartbeat.written is None:
        return f"no heartbeat was written yet{why}"
    return f"the last heartbeat was written {heartbeat.written:.1f} s ago{why}"
