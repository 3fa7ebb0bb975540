"""The recipes of docs/howto/web.md for handlers in a process that somebody else ends, in the real servers.

Each is restarted five times while a slow handler runs. The handler ends before its process does.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field, frozen

from lanelog import Client
from support.readme import Example, example
from support.sql import stored
from support.waiting import eventually

pytestmark = pytest.mark.one_family("mariadb")

RESTARTS = 5
SLOW = """
import os
import threading


def slow(message):
    journal = os.open("journal", os.O_WRONLY | os.O_APPEND)
    os.write(journal, f"started {message.key} {message.attempt} {os.getpid()}\\n".encode())
    threading.Event().wait(SECONDS)
    os.write(journal, f"handled {message.key}\\n".encode())
    os.close(journal)
"""
WSGI = """
import jobs


def application(environ, start_response):
    start_response("200 OK", [])
    return [b"ok"]
"""
CELERY_APP = """
import celery
import hooks

app = celery.Celery("app", broker="memory://")
"""


@frozen
class Recipe:
    """What the page has for a server, and how the server is started and restarted."""

    example: Example
    file: str
    """Where the example stands."""
    command: tuple[str, ...]
    more: dict[str, str] = field(factory=dict)
    """Files beside it."""
    restart: str = "terminate"
    seconds: int = 2
    """What a handler takes: longer than the server would go on by itself."""


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


# At port 0 the kernel gives one that is free. One that the test had seen to be free, others could have taken meanwhile.
UVICORN = python("-m", "uvicorn", "app:app", "--port", "0")
GUNICORN = python("-m", "gunicorn", "--config", "gunicorn.conf.py", "--bind", "127.0.0.1:0", "wsgi:application")
UWSGI = python(
    *("-c", "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"),
    *("--master", "--processes", "1", "--enable-threads", "--die-on-term", "--http-socket", "127.0.0.1:0"),
    *("--wsgi-file", "wsgi.py", "--import", "hooks"),
)
CELERY = python("-m", "celery", "--app", "app", "worker", "--pool", "prefork", "--concurrency", "1")
RECIPES = {
    "gunicorn": Recipe(Example.GUNICORN, "gunicorn.conf.py", GUNICORN, {"wsgi.py": WSGI}),
    "gunicorn-reload": Recipe(Example.GUNICORN, "gunicorn.conf.py", GUNICORN, {"wsgi.py": WSGI}, "hang up"),
    "gunicorn-preload": Recipe(Example.GUNICORN, "gunicorn.conf.py", (*GUNICORN, "--preload"), {"wsgi.py": WSGI}),
    "uvicorn": Recipe(Example.LIFESPAN, "app.py", UVICORN),
    "uvicorn-reload": Recipe(Example.LIFESPAN, "app.py", (*UVICORN, "--reload"), restart="write"),
    "flask": Recipe(Example.FLASK_SERVER, "app.py", python("app.py")),
    "uwsgi": Recipe(Example.UWSGI, "hooks.py", UWSGI, {"wsgi.py": WSGI}),
    "celery": Recipe(Example.CELERY, "hooks.py", CELERY, {"app.py": CELERY_APP}, seconds=10),
}


@define
class Site:
    """A running server."""

    recipe: Recipe
    home: Path
    url: str
    _process: subprocess.Popen[bytes] | None = None

    def install(self) -> None:
        """Write its files."""
        jobs = example(Example.JOBS).text.replace("print(message.key, message.json())", "slow(message)")
        files = {
            "slow.py": SLOW.replace("SECONDS", str(self.recipe.seconds)),
            "jobs.py": f"from slow import slow\n{jobs}",
            "journal": "",
            self.recipe.file: example(self.recipe.example).text,
            **self.recipe.more,
        }
        for name, content in files.items():
            (self.home / name).write_text(content)

    def start(self) -> None:
        """Start the server."""
        with (self.home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self.recipe.command,
                cwd=self.home,
                env={**os.environ, "LANELOG_URL": self.url},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def restart(self) -> None:
        """End it in the server's own way, and have another one."""
        if self.recipe.restart == "hang up":
            self._process.send_signal(signal.SIGHUP)
        elif self.recipe.restart == "write":
            (self.home / self.recipe.file).write_text((self.home / self.recipe.file).read_text() + "\n")
        else:
            self._process.terminate()
            self._process.wait(60)
            self.start()

    def attempts(self) -> list[list[str]]:
        """Key, attempt and process of each attempt that has begun."""
        return [words for event, *words in self._journal() if event == "started"]

    def handled(self) -> list[str]:
        """The keys of the attempts that have ended."""
        return [key for event, key, *_ in self._journal() if event == "handled"]

    def wait_for(self, count: int) -> None:
        """Wait until so many attempts have begun. Else the error shows what the server said last."""
        try:
            eventually(lambda: len(self.attempts()) >= count, within=40)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self.home / 'output').read_text()[-4000:]}") from None

    def _journal(self) -> list[list[str]]:
        return [line.split() for line in (self.home / "journal").read_text().splitlines()]

    def close(self) -> None:
        """End all that still runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


@pytest.fixture
def site(lanelog_url: str, tmp_path: Path) -> Iterator[Callable[[Recipe], Site]]:
    """Install and start a server that ends with the test."""
    running: list[Site] = []

    def begin(recipe: Recipe) -> Site:
        running.append(Site(recipe, tmp_path, lanelog_url))
        running[-1].install()
        running[-1].start()
        return running[-1]

    yield begin
    for each in running:
        each.close()


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_no_restart_cuts_a_handler_off(
    site: Callable[[Recipe], Site], lanelog_client: Client, raw: Any, name: str
) -> None:
    """Every message has one attempt, and none becomes a dead letter."""
    running = site(RECIPES[name])
    keys = [f"k{turn}" for turn in range(RESTARTS)]
    for number, key in enumerate(keys):
        lanelog_client.publish("merge", key, {})
        running.wait_for(number + 1)
        handling = running.attempts()[number][-1]
        running.restart()
        eventually(lambda: not Path(f"/proc/{handling}").exists(), within=40)  # noqa: B023 - called here
    assert [(key, attempt) for key, attempt, _ in running.attempts()] == [(key, "1") for key in keys]
    assert running.handled() == keys
    assert stored(raw, "merge_dlq") == 0
