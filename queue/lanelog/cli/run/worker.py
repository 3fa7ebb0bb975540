"""The command `worker`: the handlers of a module, in processes under one supervisor.

Owns the options and their form. `lanelog.worker` has the supervisor.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from lanelog.cli.command import options
from lanelog.cli.command.values import Size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog.worker.supervisor import Supervisor

_PROCESSES_MAX: Final = 1000


@options.command("worker shop.billing:client --processes 4")
@click.argument("target", metavar="MODULE:CLIENT")
@click.option(
    "--processes",
    type=click.IntRange(1, _PROCESSES_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Handlers of one process share one interpreter lock; CPU work needs more processes.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Handler threads of each handler and process; default: as the module says.",
)
@click.option("--health", metavar="HOST:PORT", help="Where to serve /livez and /readyz, of all processes together.")
@click.option(
    "--metrics", metavar="HOST:PORT", help="Where to serve metrics to Prometheus: those of all processes, summed."
)
@options.seconds(
    "--drain-timeout", "Seconds that running handlers have at the end; default: as long as they take.", within=(0, None)
)
@click.option(
    "--max-messages",
    type=click.IntRange(1),
    metavar="N",
    help="Replace a process when it has handled so many; one process at a time.",
)
@click.option(
    "--max-memory", type=Size(), metavar="SIZE", help="The same when it uses so much memory, such as 512M or 2G."
)
@click.option(
    "--recreate",
    is_flag=True,
    help="Register groups again that were evicted before this start; without it, their handlers do not run.",
)
@click.option("--reload", is_flag=True, help="For development: replace them when a .py file below here changes.")
def worker(
    *,
    target: str,
    processes: int,
    health: str | None,
    metrics: str | None,
    max_messages: int | None,
    max_memory: int | None,
    reload: bool,
    **orders: Any,
) -> None:
    """Run the handlers of a client, until SIGTERM or Ctrl-C: MODULE:CLIENT is such as shop.jobs:client.

    Its module decorates them with @client.subscriber, and need not call client.run(). Each process imports it anew.
    One that dies is started again. A second signal kills them without a wait.

    Exit status: 0 drained; 1 or 2 ended, because no process could start; 128 + N killed by a second signal N.
    """
    from lanelog._process.probes import serving
    from lanelog._process.target import check_target
    from lanelog.worker.changes import Changes
    from lanelog.worker.child import log_to_terminal
    from lanelog.worker.orders import Limits, Orders
    from lanelog.worker.supervisor import Supervisor

    check_target(target)
    log_to_terminal()
    supervisor = Supervisor(
        Orders(target=target, metrics=metrics is not None, **orders),
        processes,
        Limits(messages=max_messages, memory=max_memory),
        Changes() if reload else None,
    )
    with serving(health, supervisor.dying, supervisor.lacking), _measuring(metrics, supervisor):
        status = supervisor.run()
    raise SystemExit(status)


@contextmanager
def _measuring(listen: str | None, supervisor: Supervisor) -> Iterator[None]:
    """Serve the metrics within the block."""
    if listen is None:
        yield
        return
    from lanelog.cli.run.metrics import check_installed, serving_metrics

    check_installed()
    from lanelog.metrics.summed import SummedCollector

    summed = SummedCollector(supervisor.metrics)
    supervisor.retire = summed.retire
    with serving_metrics("--metrics", listen, summed):
        yield
