"""The demo: a git repository's history, rebuilt through the queue while a worker is killed.

It uses the library as any application would: it publishes, subscribes, and reads through `client.admin`.

`git` reads repositories. `history` makes jobs of them (`job`), and `publish` publishes these. `fleet` runs three
`worker` processes with the handlers of `rebuild`, which write into `tables`. `chaos` kills one of them. `watch` reads
the progress, and `view` shows it. At the end `verify` compares the result with git, and `report` prints it. `run` is
the order of all that, and `cleanup` removes its traces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rich.console import Console

from demo.fleet import WorkerEnded
from demo.git import GitError, NoHistory, Repository, find_all
from demo.history import count_changes
from demo.run import Run, Stalled
from demo.view import print_plain, view_for
from lanelog import devserver

__all__ = ["main"]

MANY = 5000
"""A history with this many changes keeps the workers busy for long enough."""

HOLD = 200.0
LONGEST_PAUSE = 10.0


def main(
    repos: Sequence[str] = (),
    *,
    url: str | None = None,
    workers: int = 3,
    console: Console | None = None,
    afterwards: Callable[[str, str, int], bool] | None = None,
) -> int:
    """Rebuild repositories, and return the exit status.

    Args:
        repos: Their directories. Empty: the one around the working directory.
        url: The database. None: LANELOG_URL; if that is not set, a server that is started for the run.
        workers: The number of worker processes.
        console: Where to print. None: standard output.
        afterwards: Called with the database's URL, the topic and the number of its messages, before the database goes.
            If it returns False, the status is 1.

    Returns:
        0: identical to HEAD, and every job applied exactly once. 1: not. 2: there is no git history.

    Raises:
        LanelogError: The database cannot be used.
    """
    console = console or Console()
    errors = Console(stderr=True)
    try:
        repositories = find_all(list(repos) or ["."])
        changes = count_changes(repositories, MANY)
    except NoHistory as exc:
        print_plain(errors, str(exc))
        return 2
    except GitError as exc:
        print_plain(errors, f"failed: {exc}")
        return 1
    if not changes:
        print_plain(errors, "no git history: no commit has changed a file")
        return 2
    pause = 0.0 if changes >= MANY else min(LONGEST_PAUSE, HOLD / changes)
    try:
        with ExitStack() as stack:
            server = stack.enter_context(devserver.start(url or os.environ.get("LANELOG_URL") or "auto"))
            _introduce(console, repositories, server, changes, pause)
            run = Run(repositories=repositories, url=server.url, workers=workers, pause=pause)
            if not server.own:
                stack.callback(run.remove)
            with view_for(console) as view:
                report = run(view)
            report.print(console)
            done = afterwards is None or afterwards(server.url, run.topic, report.jobs + 1)  # + 1: the malformed job
    except (GitError, WorkerEnded, Stalled) as exc:
        print_plain(errors, f"failed: {exc}")
        return 1
    return report.status if done else 1


def _introduce(
    console: Console, repositories: Sequence[Repository], server: devserver.DevServer, changes: int, pause: float
) -> None:
    for repository in repositories:
        what = f"{repository.name} at {repository.head[:12]}"
        print_plain(console, f"rebuilding {what}, commit by commit along first parents: a merge is one step")
    print_plain(console, f"through {server.family} {server.version}")
    if pause:
        print_plain(
            console,
            f"{changes} changes are few: every job takes up to {pause:.2f} s longer until a worker has been killed",
        )
