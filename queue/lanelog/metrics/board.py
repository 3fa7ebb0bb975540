"""The board for Grafana: panels over the metrics of the log, and some over those of the workers.

Owns the panels, their queries and their positions. Knows no database and no figure.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from attrs import frozen

_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_WIDE: Final = 24
"""Columns of a Grafana board."""
_HIGH: Final = 8
_GROUP: Final = '{topic=~"$topic",group=~"$group"}'
_TOPIC: Final = '{topic=~"$topic"}'
_BOTH: Final = "{{topic}} {{group}}"


def _summed(expression: str, *labels: str) -> str:
    """Return the sum of all processes, by topic, group and these labels."""
    return f"sum by ({','.join(('topic', 'group', *labels))}) ({expression})"


_HANDLING: Final = _summed(f"rate(lanelog_client_handler_seconds_bucket{_GROUP}[5m])", "le")
_NOBODY: Final = (
    f"count(lanelog_group_lag_messages{_GROUP} > 0 and lanelog_group_members{_GROUP} == 0 "
    f"and lanelog_group_unowned_lanes{_GROUP} > 0) or vector(0)"
)
_SETTLED: Final = (
    f"clamp_min(-deriv(lanelog_group_lag_messages{_GROUP}[5m]) "
    f"+ on(topic) group_left() rate(lanelog_topic_heads{_TOPIC}[5m]), 0)"
)


@frozen
class Panel:
    """One panel: a question, the queries that answer it, and the legends of their lines."""

    title: str
    queries: tuple[tuple[str, str], ...]
    """Expression and legend of each line."""
    unit: str = "short"
    """In the words of Grafana: `s`, `bytes`, `mps` for messages a second."""
    kind: Literal["stat", "timeseries"] = "timeseries"
    width: int = 8
    says: str = ""


_WORST: Final = (
    Panel("Database", (("min(lanelog_up)", "answers"),), kind="stat", width=4, says="1: it answers."),
    Panel("Oldest message", ((f"max(lanelog_group_oldest_seconds{_GROUP})", ""),), "s", "stat", 4),
    Panel("Lag", ((f"sum(lanelog_group_lag_messages{_GROUP})", ""),), kind="stat", width=4),
    Panel("Stuck lanes", ((f"sum(lanelog_group_stuck_lanes{_GROUP})", ""),), kind="stat", width=4),
    Panel("Dead letters", ((f"sum(lanelog_topic_dead_letters{_TOPIC})", ""),), kind="stat", width=4),
    Panel(
        "Groups that nobody runs",
        ((_NOBODY, ""),),
        kind="stat",
        width=4,
    ),
)
_OVER_TIME: Final = (
    Panel("Lag", ((f"lanelog_group_lag_messages{_GROUP}", _BOTH),)),
    Panel("Age of the oldest message", ((f"lanelog_group_oldest_seconds{_GROUP}", _BOTH),), "s"),
    Panel(
        "Published",
        ((f"rate(lanelog_topic_heads{_TOPIC}[5m])", "{{topic}}"),),
        "mps",
        says="Messages a second that came into the log.",
    ),
    Panel(
        "Settled",
        ((_SETTLED, _BOTH),),
        "mps",
        says="Messages a second that left a group: what was published, less what its lag grew. A seek distorts it.",
    ),
    Panel(
        "Failing and stuck lanes",
        (
            (f"lanelog_group_failing_lanes{_GROUP}", f"failing {_BOTH}"),
            (
                f"lanelog_group_stuck_lanes{_GROUP} - lanelog_group_failing_lanes{_GROUP}",
                f"slow or without owner {_BOTH}",
            ),
        ),
        says="Of the 100 lanes of each group with the oldest messages.",
    ),
    Panel(
        "Lanes without owner, and paused",
        (
            (f"lanelog_group_unowned_lanes{_GROUP}", f"without owner {_BOTH}"),
            (f"lanelog_group_paused_lanes{_GROUP}", f"paused {_BOTH}"),
            (f"lanelog_group_paused{_GROUP}", f"the group is paused {_BOTH}"),
        ),
    ),
    Panel("Members", ((f"lanelog_group_members{_GROUP}", _BOTH),)),
    Panel(
        "Lanes taken over, and lost",
        (
            (_summed(f"increase(lanelog_client_lanes_taken_over_total{_GROUP}[5m])"), f"taken over {_BOTH}"),
            (_summed(f"increase(lanelog_client_lanes_lost_total{_GROUP}[5m])"), f"lost {_BOTH}"),
        ),
        says="In five minutes. From the metrics of the workers: empty unless they are scraped.",
    ),
    Panel(
        "Time in handlers",
        ((f"histogram_quantile(0.95, {_HANDLING})", _BOTH),),
        "s",
        says="What 19 of 20 attempts stay below. From the metrics of the workers.",
    ),
    Panel(
        "In handlers, and waiting for another attempt",
        (
            (f"lanelog_group_in_flight_messages{_GROUP}", f"in flight {_BOTH}"),
            (f"lanelog_group_waiting_messages{_GROUP}", f"waiting {_BOTH}"),
        ),
    ),
    Panel("Dead letters", ((f"lanelog_topic_dead_letters{_TOPIC}", "{{topic}}"),)),
    Panel("Delayed messages", ((f"lanelog_topic_delayed_messages{_TOPIC}", "{{topic}}"),)),
    Panel("Messages in the log", ((f"lanelog_topic_messages{_TOPIC}", "{{topic}}"),)),
    Panel("Lanes", ((f"lanelog_topic_lanes{_TOPIC}", "{{topic}}"),)),
    Panel(
        "Oldest transaction",
        (("lanelog_database_oldest_transaction_seconds", "open for"),),
        "s",
        says="Empty: the exporter's account lacks PROCESS.",
    ),
    Panel(
        "Oldest transaction that publishers wait for",
        (("lanelog_head_locked_seconds", "open for"),),
        "s",
        says="Empty: the exporter's account lacks PROCESS.",
    ),
    Panel("Deleted rows that wait for purge", (("lanelog_database_history_list_length", "transactions"),)),
    Panel("Size of the tables", (("lanelog_table_bytes", "{{table}}"),), "bytes"),
    Panel("How long the queries take", (("lanelog_look_seconds", "seconds"),), "s"),
    Panel(
        "Members known",
        (("lanelog_members_known", "known"),),
        says="0: the server takes no writes or is a replica, and nothing is said about members.",
    ),
    Panel("Contradictions between tables", (("lanelog_contradictions", "found"),)),
)


def board() -> str:
    """Return the board as JSON, for the import of Grafana."""
    return json.dumps(_board(), indent=2, ensure_ascii=False) + "\n"


def _board() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    x = y = 0
    for panel in (*_WORST, *_OVER_TIME):
        height = _HIGH // 2 if panel.kind == "stat" else _HIGH
        if x + panel.width > _WIDE:
            x, y = 0, y + panels[-1]["gridPos"]["h"]
        panels.append(_panel(panel, len(panels) + 1, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
    return {
        "uid": "lanelog",
        "title": "lanelog",
        "tags": ["lanelog"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                _variable("topic", "label_values(lanelog_topic_messages, topic)"),
                _variable("group", 'label_values(lanelog_group_lag_messages{topic=~"$topic"}, group)'),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }
