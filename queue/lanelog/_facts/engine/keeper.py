"""The events of the keeper, which holds leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from lanelog._base.text import plural
from lanelog._facts.fact import Fields, Room, noticed

room = Room("keeper")


class LanesFields(TypedDict):
    """The fields of an event of lanes that come or go."""

    topic: str
    group: str
    lanes: int
    keys: Sequence[str]
    held: int


@room.error("heartbeat.read_failed")
def heartbeat_read_failed(*, topic: str, group: str, error: BaseException | str) -> None:
    """The heartbeats cannot be read: lanes without an owner are taken, and no others."""


@room.error("heartbeat.write_failed")
def heartbeat_write_failed(*, topic: str, group: str, error: BaseException | str) -> None:
    """The server refuses this process's sign of life; after `lease_duration` the subscription fails."""


@room.info("keeper.came_back")
def keeper_came_back() -> None:
    """This process has all connections that handling needs again, and takes its share of the lanes."""


@room.warning("keeper.stood_aside")
def keeper_stood_aside(*, without: Sequence[str], seconds: float, error: BaseException | str) -> None:
    """The server refuses connections that handlers need. Until it accepts them, this process is not ready, takes no
    lanes, and gives its idle lanes back.
    """


@room.info("lanes.acquired")
def lanes_acquired(**fields: Unpack[LanesFields]) -> None:
    """This process took lanes: `keys` names the first of them, and `held` counts all that it has now."""


@room.warning("lanes.epochs_replaced")
def lanes_epochs_replaced(*, topic: str, group: str, lanes: int, keys: Sequence[str], epoch: int) -> None:
    """Lanes had a `lease_epoch` that lanelog never writes (2^53 or more), and got another one: find out which
    program or restore wrote it. `keys` names the first of them.
    """


@room.warning("lanes.held_up")
def lanes_held_up(*, topic: str, group: str, error: BaseException | str) -> None:
    """Lanes that never had an owner wait for one, because a transaction has locked the topic's or the group's row. The
    process tries each second; its other lanes go on. The server's list of transactions says whose it is.
    """


@room.info("lanes.released")
def lanes_released(**fields: Unpack[LanesFields]) -> None:
    """Lanes were given back, for others to take."""


def _whose(fields: Fields) -> str:
    return f"{plural(fields['lanes'], 'lane')} of a member that is gone: {', '.join(fields['owners'])}"


@noticed("lanes_taken_over", error=_whose)
@room.warning("lanes.taken_over")
def lanes_taken_over(*, topic: str, group: str, lanes: int, owners: Sequence[str]) -> None:
    """This process took over the lanes of a dead process."""


@room.error("liveness_lock.refused")
def liveness_lock_refused(*, answer: object) -> None:
    """The server gave no liveness lock: others notice the death of this process only when its heartbeat expires."""


@room.warning("server.changed")
def server_changed(*, lock_held: bool) -> None:
    """Another server answers, or the liveness lock is gone: leases and lanes are read anew."""


@room.warning("server.restarted")
def server_restarted() -> None:
    """The server was restarted: lanes are read anew."""


@room.warning("servers.alternate")
def servers_alternate(*, one: str, other: str) -> None:
    """New connections lead to two servers alternately, as behind a proxy that balances them: this process connects
    until each loop has the keeper's server. Let the address lead to the primary alone.
    """


@room.warning("tables.of_another_server")
def tables_of_another_server(*, database: str, heartbeats: int, latest: str) -> None:
    """Another server wrote the heartbeats: the tables are a copy, or the primary has changed and has no member yet.
    In a copy, this process works on the copied messages. Logged at a client's first subscription.
    """


@room.warning("topic.epoch_replaced")
def topic_epoch_replaced(*, topic: str, epoch: int) -> None:
    """The topic's row had a `max_epoch` that lanelog never writes (2^53 or more), and got another one: find out
    which program or restore wrote it.
    """
