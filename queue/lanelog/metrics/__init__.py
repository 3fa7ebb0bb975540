"""Metrics for Prometheus: of the log, as `lanelog metrics` serves them. Needs `lanelog[metrics]`.

Owns names, labels and bounds of the series, and the one import of prometheus-client. Never asks the database itself:
`client.admin` has the figures.
"""

from __future__ import annotations

from importlib import resources

from lanelog.metrics.board import board
from lanelog.metrics.log import LogCollector

__all__ = ["LogCollector", "alert_rules", "board"]


def alert_rules() -> str:
    """Return alert rules on the metrics of the log, as a file of rules for Prometheus."""
    return resources.files(__name__).joinpath("rules.yaml").read_text()
