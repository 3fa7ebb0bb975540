"""How a hint gets to a subscriber: by its Unix socket on this host, by UDP to a host that the publisher allows.

Owns who may be sent to, and the sending. A heartbeat row aims no packets at anybody: its writer only chooses among the
sockets of lanelog on this host and the addresses in the publisher's own `wake_networks`.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._base.addresses import UdpAddress
from lanelog._hints.host import own_host

if TYPE_CHECKING:
    from collections.abc import Collection

    from lanelog._base.addresses import Network
    from lanelog._hints.datagram import Hint
    from lanelog._stores.members.heartbeats import WakeEndpoint

PREFIX: Final = "lanelog-"
"""How the name of each Unix socket begins."""

ACROSS: Final = "@"
"""What stands in an address between the name of the Unix socket and the UDP address. The name contains both, so that a
publisher on the same host takes the whole text for the name."""


@frozen
class Target:
    """One subscriber's socket."""

    family: int
    address: str | tuple[str, int]
    token: int


def target_of(wake: WakeEndpoint, networks: tuple[Network, ...]) -> Target | None:
    """Return where this endpoint is reached from here. None: nowhere."""
    if wake.host == own_host():
        # Only ASCII: another text cannot be a socket's name in every locale.
        unix = wake.address.startswith(PREFIX) and wake.address.isascii()
        return Target(socket.AF_UNIX, f"\0{wake.address}", wake.token) if unix else None
    if not networks:
        return None
    try:
        udp = UdpAddress.parse(wake.address.partition(ACROSS)[2])
    except ValueError:
        return None
    if not udp.port or not udp.lies_in(networks):
        return None
    return Target(family_of(udp), (str(udp.ip), udp.port), wake.token)


def family_of(address: UdpAddress) -> int:
    """Return the family of its sockets."""
    return socket.AF_INET6 if isinstance(address.ip, IPv6Address) else socket.AF_INET


def deliver(targets: Collection[Target], hint: Hint) -> int:
    """Send a hint to each target, and wait for none. Return how many were taken: by UDP, some of these may be lost.

    Raises nothing.
    """
    taken = 0
    for family in {target.family for target in targets}:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line:
            for target in targets:
                if target.family == family:
                    with suppress(OSError):  # the subscriber is gone, or has not read the earlier ones
                        line.sendto(hint.packed(target.token), target.address)
                        taken += 1
    return taken
