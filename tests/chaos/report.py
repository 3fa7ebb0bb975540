"""What a chaos run shows: counts, duplicates by cause, anomalies, and how long lanes stood still after each fault.

Owns the arithmetic and the table; the judgement is the checker's. The runner calls it once, at the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from rich.table import Table

from chaos.checker import Anomaly, History, unexplained
from chaos.history import Begin, Event, Fault, Publish


def recovery(history: History, fault: Fault) -> float | None:
    """Seconds from the fault until every lane whose handler it met had another one begun; None: it met none.

    A server's fault counts from when it was up again. A lane in which nothing was left to do is not waited for: it
    counts from its next message.
    """
    since = fault.end if fault.kind == "server" else fault.start
    waits = []
    for runs in history.lanes.values():
        met = [
            run
            for run in runs
            if run.at <= fault.start
            and (run.end is None or run.end.at > fault.start)
            and fault.process in {None, run.begin.process}
            and (run.died is None or run.died >= fault.start)
        ]
        later = bisect_right(runs, since, key=lambda run: run.at)
        if met and later < len(runs):
            begin = runs[later].begin
            published = history.acknowledged.get((begin.topic, begin.key, begin.id))
            waits.append(begin.at - max(since, published.at if published else since))
    return max(waits, default=None)


def summary(events: Sequence[Event], anomalies: Sequence[Anomaly], effect_groups: Sequence[str]) -> Table:
    """The one table."""
    table = Table("what", "count", "detail", title="chaos")
    outcomes = Counter(event.outcome for event in events if isinstance(event, Publish))
    open_ended = outcomes["attempted"] - sum(outcomes[o] for o in ("acknowledged", "unknown", "rolled-back"))
    detail = f"{outcomes['rolled-back']} rolled back, {outcomes['unknown'] + open_ended} of unknown outcome"
    table.add_row("published", str(outcomes["acknowledged"]), detail)
    handled = Counter(event.group for event in events if isinstance(event, Begin))
    for group, count in sorted(handled.items()):
        retried = sum(1 for event in events if isinstance(event, Begin) and event.group == group and event.attempt > 1)
        table.add_row(f"handled by {group}", str(count), f"{retried} of them as a later attempt")
    table.add_section()
    _count(table, anomalies)
    table.add_section()
    history = History(events, frozenset(effect_groups))
    by_kind = defaultdict(list)
    for fault in history.faults:
        wait = recovery(history, fault)
        over = (fault.end if fault.kind == "server" else fault.start) + (wait or 0)
        alone = not any(fault.start < other.start < over for other in history.faults)
        by_kind[fault.kind].append((wait, alone))
    for kind, found in sorted(by_kind.items()):
        waits = [wait for wait, alone in found if wait is not None and alone]
        detail = f"lanes moved after {median(waits):.2f} s (median), {max(waits):.2f} s (worst)" if waits else ""
        if disturbed := sum(not alone for _, alone in found):
            detail += f"{', ' if detail else ''}{disturbed} met the next fault"
        table.add_row(f"fault: {kind}", str(len(found)), detail)
    return table


def _count(table: Table, anomalies: Sequence[Anomaly]) -> None:
    causes = Counter((anomaly.kind, anomaly.explained_by) for anomaly in anomalies if anomaly.explained_by)
    for (kind, cause), count in sorted(causes.items(), key=str):
        table.add_row(kind, str(count), f"explained by {cause}")
    broken = Counter(anomaly.kind for anomaly in unexplained(anomalies))
    for kind, count in sorted(broken.items()):
        table.add_row(f"[bold red]{kind}[/]", str(count), "UNEXPLAINED")
    table.add_row("anomalies", str(broken.total()), "that no fault explains")
