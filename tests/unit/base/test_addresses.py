"""Addresses and networks of hints across hosts: what is taken, what is refused, and where a publisher may send to."""

import socket
from typing import Any

import pytest

from lanelog._base.addresses import UdpAddress
from lanelog._base.connection_options import ConnectConfig
from lanelog._hints import route
from lanelog._hints.datagram import Hint
from lanelog._hints.host import own_host
from lanelog._hints.route import Target, deliver, target_of
from lanelog._stores.members.heartbeats import WakeEndpoint
from lanelog.errors import ConfigurationError
from support.waiting import raising

URL = "mysql://u:hunter2@host/db"
ELSEWHERE = "another host"
UNIX = "lanelog-0123456789abcdef"


def config(**options: object) -> ConnectConfig:
    """The settings with these options."""
    return ConnectConfig.from_url(URL, **options)


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("10.0.3.7", "10.0.3.7", 0),
        ("10.0.3.7:7000", "10.0.3.7", 7000),
        ("fd00::7", "fd00::7", 0),
        ("[fd00::7]", "fd00::7", 0),
        ("[FD00:0::7]:7000", "fd00::7", 7000),
        ("127.0.0.1:65535", "127.0.0.1", 65535),
        ("::1", "::1", 0),
    ],
)
def test_an_address_is_read_as_it_is_written(text: str, address: str, port: int) -> None:
    """An address has a port or none, and is IPv4 or IPv6; the text in a heartbeat row reads the same."""
    found = config(wake_address=text).wake_address
    assert (str(found.ip), found.port) == (address, port)
    assert UdpAddress.parse(str(found)) == found


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "no IP address"),
        ("worker-3:7000", "a name is not looked up"),
        ("localhost", "a name is not looked up"),
        ("10.0.3.7/24", "no IP address"),
        ("10.0.3.07", "no IP address"),
        ("0.0.0.0:7000", "name the one that publishers see"),
        ("::", "name the one that publishers see"),
        ("224.0.0.1:7000", "multicast"),
        ("[ff02::1]:7000", "multicast"),
        ("255.255.255.255:7000", "broadcast"),
        ("240.0.0.1", "broadcast or reserved"),
        ("::ffff:10.0.3.7", "write 10.0.3.7"),
        ("fe80::1", "link-local"),
        ("fd00::1%eth0", "link-local"),
        ("[fd00::7", "write [fd00::7]:7000"),
        ("[fd00::7]7000", "write [fd00::7]:7000"),
        ("10.0.3.7:", "the port must be a number from 1024 to 65535"),
        ("10.0.3.7:0", "the port must be"),
        ("10.0.3.7:53", "the port must be"),
        ("10.0.3.7:65536", "the port must be"),
        ("10.0.3.7:+7000", "the port must be"),
        ("10.0.3.7:\u0667000", "the port must be"),
        ("10.0.3.7:99999999999999999999", "the port must be"),
        (7000, "wake_address must be a str, not int"),
        (b"10.0.3.7", "wake_address must be a str, not bytes"),
    ],
)
def test_a_wrong_address_is_refused(value: object, reason: str) -> None:
    """At connect, and the error says what is wrong with it."""
    with pytest.raises(ConfigurationError, match="wake_address") as caught:
        config(wake_address=value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("option", [{"wake_address": "10.0.3.7"}, {"wake_networks": ["10.0.0.0/8"]}], ids=str)
def test_where_hints_go_is_refused_without_hints(option: dict[str, Any]) -> None:
    """With `wake=False` nothing would read the option."""
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))} is for hints, and wake=False disables them"):
        config(wake=False, **option)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("10.0.0.0/8", "wake_networks must be a list of networks, not str"),
        (None, "wake_networks must be a list of networks, not NoneType"),
        (["10.0.3.7/8"], "host bits set"),
        (["everywhere"], "does not appear to be"),
        (["10.0.0.0/33"], "does not appear to be"),
        (["224.0.0.0/4"], "multicast"),
        (["ff00::/8"], "multicast"),
        ([7], "wake_networks must hold texts as '10.0.0.0/16', not int"),
    ],
)
def test_wrong_networks_are_refused(value: object, reason: str) -> None:
    """At connect, and the error says what is wrong with them."""
    with pytest.raises(ConfigurationError) as caught:
        config(wake_networks=value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("address", "networks", "where"),
    [
        (f"{UNIX}@10.0.3.7:7000", ["10.0.3.0/24"], ("10.0.3.7", 7000)),
        (f"{UNIX}@10.0.3.7:7000", ["10.0.3.7"], ("10.0.3.7", 7000)),
        (f"{UNIX}@[fd00::7]:7000", ["10.0.3.0/24", "fd00::/8"], ("fd00::7", 7000)),
        (f"{UNIX}@10.0.3.7:7000", [], None),
        (f"{UNIX}@10.0.4.7:7000", ["10.0.3.0/24", "fd00::/8", "::/0"], None),
        (f"{UNIX}@10.0.3.255:7000", ["10.0.3.0/24"], None),
        (f"{UNIX}@255.255.255.255:7000", ["0.0.0.0/0"], None),
        (f"{UNIX}@224.0.0.1:7000", ["0.0.0.0/0"], None),
        (f"{UNIX}@[ff02::1]:7000", ["::/0"], None),
        (f"{UNIX}@[::ffff:10.0.3.7]:7000", ["::/0"], None),
        (f"{UNIX}@0.0.0.0:7000", ["0.0.0.0/0"], None),
        (f"{UNIX}@10.0.3.7:53", ["10.0.3.0/24"], None),
        (f"{UNIX}@10.0.3.7", ["10.0.3.0/24"], None),
        (f"{UNIX}@db.example:7000", ["0.0.0.0/0"], None),
        (UNIX, ["0.0.0.0/0"], None),
        ("10.0.3.7:7000", ["0.0.0.0/0"], None),
        ("@", ["0.0.0.0/0"], None),
    ],
)
def test_a_row_of_another_host_aims_no_packets(
    address: str, networks: list[str], where: tuple[str, int] | None
) -> None:
    """Packets go there only if the publisher's own networks have its address, whatever else the row says."""
    found = target_of(WakeEndpoint(ELSEWHERE, address, 7), config(wake_networks=networks).wake_networks)
    assert (None if found is None else found.address) == where


@pytest.mark.skipif(not own_host(), reason="hints need Linux")
@pytest.mark.parametrize(("address", "named"), [(UNIX, True), (f"{UNIX}@10.0.3.7:7000", True), ("/org/bus", False)])
def test_a_row_of_this_host_names_a_socket_of_lanelog(address: str, *, named: bool) -> None:
    """The row's Unix socket is taken, whatever networks are allowed, and no other program's socket."""
    found = target_of(WakeEndpoint(own_host(), address, 7), config(wake_networks=["10.0.0.0/8"]).wake_networks)
    assert found == (Target(socket.AF_UNIX, f"\0{address}", 7) if named else None)


def test_what_cannot_be_sent_is_counted_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that is gone, a name that is too long, and no socket to send from."""
    gone = [Target(socket.AF_UNIX, f"\0{UNIX}", 7), Target(socket.AF_UNIX, "\0" + 255 * "x", 7)]
    assert deliver(gone, Hint(1, new_lanes=False)) == 0

    monkeypatch.setattr(route.socket, "socket", raising(OSError, "too many open files"))
    assert deliver(gone, Hint(1, new_lanes=False)) == 0
