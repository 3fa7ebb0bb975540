"""Addresses: of the hosts of a database, and of hints across hosts (`wake_address=`, `wake_networks=`). Pure.

Never resolves a name: a publisher that read a row must not ask a server of names for it.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Protocol, TypeAlias, runtime_checkable

from attrs import frozen

from lanelog.errors import ConfigurationError

Network: TypeAlias = IPv4Network | IPv6Network

_LEAST_PORT: Final = 1024
"""No row aims packets at the services of a system: DNS, NTP, SNMP and others have lower ports."""

_MOST_PORT: Final = 65_535
_POINT_TO_POINT: Final = 31
"""From this length of its prefix on, a network has no broadcast address."""


@frozen
class Address:
    """One host and its port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@runtime_checkable
class HostTokens(Protocol):
    """Makes passwords that one host takes, as IAM of AWS does. They are sent as they are, so TLS is enforced."""

    def token(self, host: str, port: int, user: str) -> str:
        """Return the password of a login that begins now."""


@frozen
class UdpAddress:
    """Where a subscriber on another host receives hints."""

    ip: IPv4Address | IPv6Address
    port: int
    """0: any that is free. Only in the option."""

    def __str__(self) -> str:
        host = f"[{self.ip}]" if isinstance(self.ip, IPv6Address) else str(self.ip)
        return f"{host}:{self.port}" if self.port else host

    @classmethod
    def parse(cls, text: str) -> UdpAddress:
        """Read `10.0.3.7:7000`, `10.0.3.7`, `[fd00::7]:7000` or `fd00::7`. ValueError, with the reason."""
        host, port = text, None
        if text.startswith("["):
            host, closed, rest = text[1:].partition("]")
            if not closed or rest[:1] not in ("", ":"):
                raise ValueError("write [fd00::7]:7000 for an IPv6 address with a port")
            port = rest[1:] if rest else None
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        return cls(_ip(host), 0 if port is None else _port(port))

    def lies_in(self, networks: tuple[Network, ...]) -> bool:
        """Whether one of the networks has it, and not as its broadcast address.

        A publisher does not know all masks of the networks in between. The kernel refuses broadcasts to its own ones.
        """
        return any(self.ip in network and not self._is_broadcast(network) for network in networks)

    def _is_broadcast(self, network: Network) -> bool:
        if isinstance(network, IPv6Network) or network.prefixlen >= _POINT_TO_POINT:
            return False
        return self.ip == network.broadcast_address


def _ip(text: str) -> IPv4Address | IPv6Address:
    try:
        ip = ip_address(text)
    except ValueError:
        raise ValueError("no IP address: a name is not looked up") from None
    if ip.is_multicast:
        raise ValueError("a multicast address")
    if ip.is_unspecified:
        raise ValueError("an address to which no publisher can send: name the one that publishers see")
    if isinstance(ip, IPv4Address):
        if ip.is_reserved:  # 255.255.255.255 is one of them
            raise ValueError("a broadcast or reserved address")
    elif ip.ipv4_mapped is not None:
        raise ValueError(f"an IPv4 address in the form of an IPv6 one: write {ip.ipv4_mapped}")
    elif ip.is_link_local or ip.scope_id is not None:
        raise ValueError("a link-local address, which means another interface on each host")
    return ip


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_PORT)) else 0
    if not _LEAST_PORT <= port <= _MOST_PORT:
        raise ValueError(f"the port must be a number from {_LEAST_PORT} to {_MOST_PORT}")
    return port


def address_option(value: object) -> UdpAddress | None:
    """Convert `wake_address=`. Raises ConfigurationError."""
    if value is None or isinstance(value, UdpAddress):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"wake_address must be a str, not {type(value).__name__}: write '10.0.3.7:7000'")
    try:
        return UdpAddress.parse(value)
    except ValueError as error:
        reason = str(error)
    raise ConfigurationError(f"wake_address must be an IP address, with a port or without: {value!r}: {reason}")


def networks_option(value: object) -> tuple[Network, ...]:
    """Convert `wake_networks=`. Raises ConfigurationError."""
    if not isinstance(value, tuple | list):
        raise ConfigurationError(
            f"wake_networks must be a list of networks, not {type(value).__name__}: write ['10.0.0.0/16']"
        )
    return tuple(map(_network, value))


def _network(value: object) -> Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"wake_networks must hold texts as '10.0.0.0/16', not {type(value).__name__}")
    try:
        network = ip_network(value)
    except ValueError as error:
        reason = str(error)
    else:
        if not network.is_multicast:
            return network
        reason = "hints are not sent to multicast addresses"
    raise ConfigurationError(f"wake_networks must hold networks as '10.0.0.0/16': {value!r}: {reason}")
