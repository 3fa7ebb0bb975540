"""What a forked child does with inherited objects, without a fork: none keeps another one from being abandoned."""

import os
import signal
import socket
from pathlib import Path

import pytest

from lanelog._database import fork
from lanelog._database.fork import Descriptor


class Inherited:
    """Notes when it is abandoned, and may fail then."""

    def __init__(self, name: str, order: list[str], *, fails: bool = False) -> None:
        self.name, self.order, self.fails = name, order, fails

    def abandon(self) -> None:
        self.order.append(self.name)
        if self.fails:
            raise RuntimeError(self.name)


def test_each_object_is_abandoned_and_shared_ones_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any failure the others follow. The first failure is raised at the end."""
    monkeypatch.setattr(fork, "_wires", type(fork._wires)())
    monkeypatch.setattr(fork, "_shared", type(fork._shared)())
    order: list[str] = []
    wires = [Inherited("wire", order, fails=True), Inherited("wire", order)]
    shared = [Inherited("shared", order, fails=True), Inherited("shared", order)]
    for wire in wires:
        fork.register_wire(wire)
    for each in shared:
        fork.register_shared(each)
    fork._before()
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(RuntimeError, match="shared"):
        fork._in_child()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert order == ["shared", "shared", "wire", "wire"]


def test_a_descriptor_that_is_another_file_by_now_is_left_alone(tmp_path: Path) -> None:
    """The number of a closed connection may belong to the application, which goes on using it."""
    here, there = socket.socketpair()
    with here, there:
        noted = Descriptor.of(here)
        noted.cut()
        there.settimeout(0)
        assert os.path.samestat(os.fstat(noted.number), Path(os.devnull).stat())
    noted.cut()  # closed
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    if descriptor != noted.number:
        os.dup2(descriptor, noted.number)
        os.close(descriptor)
    noted.cut()
    os.write(noted.number, b"x")
    os.close(noted.number)
    assert (tmp_path / "file").read_bytes() == b"x"
