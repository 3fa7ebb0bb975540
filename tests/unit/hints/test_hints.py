"""Hints without a database: what is sent, what is believed, how much of the time it may take."""

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from attrs import evolve

from lanelog._base.addresses import UdpAddress
from lanelog._hints.allowance import Allowance
from lanelog._hints.datagram import SIZE, Hint, number_of, unpack
from lanelog._hints.doorbell import Doorbell
from lanelog._hints.host import own_host
from lanelog._hints.receiver import Receiver
from lanelog._hints.route import Target, deliver, target_of
from support.forking import exit_status_of
from support.waiting import Record, events

pytestmark = pytest.mark.skipif(not own_host(), reason="hints need Linux")

HINT = Hint(number_of("t"), new_lanes=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An open one."""
    made = Receiver()
    made.open()
    yield made
    made.close()


def send(receiver: Receiver, *datagrams: bytes) -> None:
    """Send them to its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        for datagram in datagrams:
            line.sendto(datagram, f"\0{receiver.endpoint.address}")


@pytest.mark.parametrize("new_lanes", [True, False])
@pytest.mark.parametrize("messages", [True, False])
def test_a_datagram_says_what_was_packed_to_whoever_has_its_token(*, new_lanes: bool, messages: bool) -> None:
    """A datagram of another token, or of another length, says nothing."""
    hint = Hint(number_of("t"), new_lanes, messages)
    packed = hint.packed(7)
    assert unpack(packed, 7) == hint
    assert [unpack(*other) for other in ((packed, 8), (packed + b"x", 7), (packed[:-1], 7))] == [None] * 3


def test_merged_hints_say_what_each_of_them_said() -> None:
    """A target that is found later gets all hints since the last reading."""
    created, committed = Hint(1, new_lanes=True, messages=False), Hint(1, new_lanes=False)
    assert committed.merged(created) == created.merged(committed) == Hint(1, new_lanes=True)
    assert created.merged(None) == created


def test_the_receiver_believes_its_token_alone(receiver: Receiver) -> None:
    """Wrong datagrams are counted and ignored, and equal hints are one."""
    token = receiver.endpoint.token
    send(receiver, HINT.packed(token), HINT.packed(token + 1), b"", secrets.token_bytes(500), HINT.packed(token))
    assert (receiver.receive(), receiver.received, receiver.ignored) == ({HINT}, 2, 3)


def test_one_reading_is_bounded_and_followed_by_deafness(receiver: Receiver) -> None:
    """Datagrams without end keep the loop busy for a batch, and then not for a while."""
    stop = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line:
            while not stop.is_set():
                try:
                    line.sendto(bytes(SIZE), f"\0{receiver.endpoint.address}")
                except OSError:
                    continue

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        before = time.monotonic()
        assert receiver.receive() == set()
    finally:
        stop.set()
        flooding.join()
    assert receiver.ignored <= receiver.batch_datagrams
    receiver.rest(before)
    assert receiver.deaf_until >= before + receiver.least_deaf_seconds


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_both_sockets_are_read_each_within_its_bound(ip: str) -> None:
    """A flooded socket does not hold up the other one; the endpoint has both addresses."""
    receiver = Receiver()
    receiver.open(UdpAddress.parse(ip))
    if len(receiver.filenos()) == 1:
        pytest.skip("this machine does not have the address")
    place = receiver.endpoint
    far, near = target_of(evolve(place, host="another"), (ip_network(ip),)), target_of(place, ())
    assert (far.address[0], near.address) == (ip, f"\0{place.address}")
    for _ in range(receiver.batch_datagrams + 1):
        deliver([evolve(far, token=place.token + 1)], HINT)
    deliver([near], HINT)
    assert (receiver.receive(), receiver.ignored) == ({HINT}, receiver.batch_datagrams)
    assert (receiver.receive(), receiver.ignored) == (set(), receiver.batch_datagrams + 1)
    doorbell = Doorbell(receiver, lambda _hint: doorbell.set())
    for target in (far, near):
        deliver([target], HINT)
        assert doorbell.wait(60)
        doorbell.clear()
    doorbell.close()
    receiver.close()


def test_behind_nat_the_socket_listens_at_its_port_of_every_address(caplog: pytest.LogCaptureFixture) -> None:
    """The row has the address that publishers see; without a port nobody could send there, so it is left out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seen, receiver = f"192.0.2.7:{port}", Receiver()
    receiver.open(UdpAddress.parse(seen))
    assert receiver.endpoint.address.endswith(f"@{seen}")
    deliver([Target(socket.AF_INET, ("127.0.0.1", port), receiver.endpoint.token)], HINT)
    assert (receiver.receive(), events(caplog, "hints.no_socket")) == ({HINT}, [])
    second = Receiver()
    second.open(UdpAddress.parse(seen))
    assert "@" not in second.endpoint.address
    assert len(second.filenos()) == 1
    second.close()
    receiver.close()
    receiver.open(UdpAddress.parse("192.0.2.7"))
    assert "@" not in receiver.endpoint.address
    assert len(events(caplog, "hints.no_socket")) == 2
    receiver.close()


def test_a_hint_and_a_set_end_the_wait(receiver: Receiver) -> None:
    """A wait ends with whichever comes first; the listener gets the hint, and sets the event."""
    heard = Record()

    def listen(hint: Hint) -> None:
        heard(hint)
        doorbell.set()

    doorbell = Doorbell(receiver, listen)
    send(receiver, HINT.packed(receiver.endpoint.token))
    assert doorbell.wait(60)
    assert heard.items == [HINT]
    doorbell.clear()
    assert not doorbell.wait(0.001)
    threading.Timer(0.05, doorbell.set).start()
    assert doorbell.wait(60)
    doorbell.clear()
    doorbell.set()
    assert doorbell.wait(60)
    doorbell.close()


def test_a_wrong_token_does_not_end_the_wait(receiver: Receiver) -> None:
    """The rest of the time is waited for."""
    doorbell = Doorbell(receiver, pytest.fail)
    send(receiver, HINT.packed(receiver.endpoint.token + 1))
    began = time.monotonic()
    assert not doorbell.wait(0.1)
    assert time.monotonic() - began >= 0.1
    assert receiver.ignored == 1
    doorbell.close()


def test_a_fork_closes_the_childs_copies(receiver: Receiver) -> None:
    """The child's place is nowhere; the parent goes on hearing."""
    receiver.close()
    receiver.open(UdpAddress.parse("127.0.0.1"))
    assert len(receiver.filenos()) == 2
    doorbell = Doorbell(receiver, pytest.fail)
    assert exit_status_of(lambda: doorbell.set() or receiver.filenos() or receiver.endpoint.address != "") == 0
    send(receiver, HINT.packed(receiver.endpoint.token))
    assert receiver.receive() == {HINT}
    doorbell.close()


def test_two_processes_are_on_one_host_if_boot_and_network_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with a network of its own is another host, and so is this machine after its next boot."""
    boot, network, other = tmp_path / "boot", tmp_path / "network", tmp_path / "other"
    network.touch()
    other.touch()

    def host(booted: str, namespace: Path) -> str:
        boot.write_text(f"{booted}\n")
        monkeypatch.setattr("lanelog._hints.host._NETWORK", namespace)
        own_host.cache_clear()
        return own_host()

    monkeypatch.setattr("lanelog._hints.host._BOOT", boot)
    try:
        assert host("1", network) == host("1", network)
        assert len({host("1", network), host("2", network), host("1", other)}) == 3
        assert host("1", tmp_path / "none") == ""
    finally:
        monkeypatch.undo()
        own_host.cache_clear()


def test_an_allowance_pays_for_its_share_of_the_time() -> None:
    """Work of a millisecond each, as often as it is allowed: a fortieth of the time, and what was saved before."""
    allowance, now, spent = Allowance(), 1000.0, 0.0
    while now < 1100.0:
        now = max(now, allowance.free_at(now)) + 0.001
        allowance.spend(now, 0.001)
        spent += 0.001
    assert 100 / 40 - 0.01 <= spent <= (100 + allowance.span_seconds) / 40 + 0.01


def test_an_allowance_forgives_what_is_more_than_it_may_owe() -> None:
    """A look that took long by chance does not stop those that hints ask for, for longer than `span_seconds`."""
    allowance = Allowance()
    allowance.spend(1000.0, 60.0)
    assert allowance.free_at(1000.0) == pytest.approx(1000.0 + allowance.span_seconds)
