"""The events of connections and tables."""

from __future__ import annotations

from collections.abc import Sequence

from lanelog._facts.fact import Room
from lanelog._facts.log import Raised

room = Room("database")


@room.error("connections.missing")
def connections_missing(
    *, missing: int, of: int, without: Sequence[str], error: BaseException | str, remedy: str
) -> None:
    """The server refuses connections that this client needs."""


@room.info("host.chosen")
def host_chosen(*, host: str, instead_of: str) -> None:
    """Of the hosts in the URL, this one is the primary: all connections lead there. `instead_of`: the one before."""


@room.error("hosts.two_primaries")
def hosts_two_primaries(*, hosts: Sequence[str], remedy: str) -> None:
    """Several hosts of the URL are a primary, as after a failover that left the old one running. None is used. Once,
    until one can be chosen.
    """


@room.error("instrumentation.failed")
def instrumentation_failed(*, exc_info: Raised) -> None:
    """An instrumentor of the application could not trace the connection that its code gets: it is not traced."""


@room.error("lane.mended")
def lane_mended(*, topic: str, key: str, group: str, problem: str, offset: int, head: int) -> None:
    """The tables of a lane contradicted each other, as after a partial restore, and lanelog repaired them. Messages
    that may be unsettled are delivered again.
    """


@room.debug("packet.not_asked")
def packet_not_asked(*, error: BaseException | str) -> None:
    """The server could not be asked whether it runs a packet that takes long. It is asked again a second later."""


@room.warning("packet.stopped")
def packet_stopped(*, connection: int, seconds: float) -> None:
    """The server ran the first statements of a packet, and waits instead of running the next, as after KILL QUERY
    between two of them. The connection was closed, and its work is repeated.
    """


@room.warning("pool.too_small")
def pool_too_small(*, pool_size: int, waits: int, needed: int, remedy: str) -> None:
    """A hundred times within a minute, a thread waited for a connection of the pool. `needed`: the `pool_size` with
    which none would have waited. Once for each client.
    """


@room.warning("tables.older")
def tables_older(*, database: str, version: int, known: int, remedy: str) -> None:
    """The tables are of an earlier version: this process works without what is new until they are migrated."""
