"""Ctrl-C twice, and the end of a worker whose database is away."""

import signal
import socket
from contextlib import closing

import pytest

import lanelog
from lanelog.devserver import DevServer
from lanelog.devserver._local import free_port
from support.processes import Fleet
from support.waiting import eventually, never


def listens(port: int) -> bool:
    """Whether a process listens there."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.thorough
def test_a_second_ctrl_c_does_not_wait_for_a_database_that_is_away(private_server: DevServer) -> None:
    """The first one drains, which needs the database; the second one, a second later, ends the process: status 130."""
    with lanelog.connect(private_server.url) as client:
        client.migrate()
    with closing(Fleet(private_server.url)) as fleet:
        port = free_port()
        worker = fleet.worker("w", run={"health": f"127.0.0.1:{port}"})
        eventually(lambda: listens(port), what="it answers probes, so it hears signals")
        private_server.kill()
        worker.popen.send_signal(signal.SIGINT)
        worker.popen.send_signal(signal.SIGINT)  # at once: the terminal's and a wrapper's, which are one press
        never(lambda: worker.popen.poll() is not None, during=1.5, what="the end")
        worker.popen.send_signal(signal.SIGINT)
        assert worker.ended() == 128 + signal.SIGINT
