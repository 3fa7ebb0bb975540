"""Forks the processes of streaming queries from one that has imported what they need.

Spark starts a Python of its own for each streaming query, which imports pyspark, Arrow and lanelog for two seconds. Run
as a program with the path of a socket, this asks the process behind the socket for a fork in its place.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@contextmanager
def forking() -> Iterator[str]:
    """The program that Spark is to run for Python, while there is a process that forks."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path, python = Path(folder, "socket"), Path(folder, "python")
        listener.bind(str(path))
        listener.listen()
        asks = f"{sys.executable} -IS {__file__} {path}"
        python.write_text(f'#!/bin/sh\n[ "$2" = {RUNNER} ] && exec {asks}\nexec {sys.executable} "$@"\n')
        python.chmod(0o700)
        code = f"from support.spark_forks import serve; serve({listener.fileno()})"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [sys.executable, "-c", code]
        with subprocess.Popen(arguments, env=environment, pass_fds=[listener.fileno()], stdin=subprocess.PIPE) as forks:
            yield str(python)
            forks.kill()


def serve(number: int) -> None:
    """Fork for whoever asks, until this process is killed, or whoever started it has ended."""
    from pyspark.sql.streaming import python_streaming_source_runner as runner
    from pyspark.worker_util import get_sock_file_to_executor

    import lanelog.spark  # noqa: F401 - the forks need it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(fileno=number)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        asking, _ = listener.accept()
        environment, files, *_ = socket.recv_fds(asking, 1 << 17, 3)
        if not os.fork():
            for standard, each in enumerate(files):
                os.dup2(each, standard)
            os.environ.clear()
            os.environ.update(json.loads(environment))
            with get_sock_file_to_executor(timeout=None) as file:
                runner.main(file, file)
            os._exit(0)
        for each in (asking.detach(), *files):
            os.close(each)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(sys.argv[1])
        socket.send_fds(asking, [json.dumps(dict(os.environ)).encode()], [0, 1, 2])
        asking.recv(1)  # the end of the fork closes the connection
