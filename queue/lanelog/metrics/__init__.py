"""Metrics for Prometheus: of the log, as `lanelog metrics` serves them, and of a client. Needs `lanelog[metrics]`.

Owns names, labels and bounds of the series, and the one import of prometheus-client. Never asks the database itself:
`client.admin` has the figures of the log, `client.measures()` those of the process.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from lanelog.metrics.board import board
from lanelog.metrics.client import ClientCollector, observe
from lanelog.metrics.log import LogCollector

__all__ = ["ClientCollector", "LogCollector", "alert_rules", "board", "observe"]


_RUNBOOK_PAGE: Final = "operations/runbook.html"
_UNSET: Final = f"""\
# `runbook_url` is only {_RUNBOOK_PAGE} here, a path in the documentation: Alertmanager can show no link to it.
# `lanelog metrics --rules --runbook URL` writes the address at which your team reads that page.
"""


def alert_rules(runbook: str = _RUNBOOK_PAGE) -> str:
    """Return alert rules on the metrics of the log, as a file of rules for Prometheus.

    Args:
        runbook: The address of the runbook, to which each alert links. The default is the page's path in the
            documentation, which is no link yet: a comment at the top says so.
    """
    rules = resources.files(__name__).joinpath("rules.yaml").read_text().replace("RUNBOOK", runbook)
    return _UNSET + rules if runbook == _RUNBOOK_PAGE else rules
