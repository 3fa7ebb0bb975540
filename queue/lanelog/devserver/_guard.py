"""Runs one database server as its child, and kills it when the process that asked for it is gone.

Never imports the library: it is a script that `LocalServer` starts in a Python of its own. Usage:
`_guard.py PARENT DIRECTORY COMMAND…`. It prints the server's process id, passes SIGTERM on, and ends with the server.

Why a process of its own? The kernel's parent-death signal (PR_SET_PDEATHSIG) fires when the *thread* that started the
child ends: a server started from a short-lived thread would die too early. A pipe that closes with the parent does not
help either: every process that the parent has forked holds it open. The guard has one thread, so the signal is exact
between guard and server. The guard sees the end of its own parent by getppid(), which changes only with the process. So
the server dies at once with the guard, and within a fifth of a second with the parent, whatever signal ended it.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.2


def run(parent: int, directory: str, command: list[str]) -> int:
    """Run `command` until it ends or `parent` is gone. In the latter case, remove `directory`, too."""
    libc = ctypes.CDLL(None)  # loaded before the fork
    guard = os.getpid()
    watched = {signal.SIGCHLD, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def bind_to_guard() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # the guard died before the line above
            os._exit(1)

    server = subprocess.Popen(  # noqa: S603  # the command is our own
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=bind_to_guard,  # noqa: PLW1509  # this process has one thread
    )
    print(server.pid, flush=True)  # noqa: T201  # the parent reads it
    while server.poll() is None:
        if os.getppid() != parent:
            server.kill()
            server.wait()
            shutil.rmtree(directory, ignore_errors=True)
            break
        received = signal.sigtimedwait(watched, POLL_SECONDS)
        if received is not None and received.si_signo == signal.SIGTERM:
            server.terminate()
    return server.returncode


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:]) and 1)
