"""What a chaos run shows: counts, duplicates by cause, anomalies, and how long lanes stood still after each fault.

Owns the arithmetic, the table and the JSON result; the judgement is the checker's. The runner calls it at the end.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from attrs import asdict, frozen
from rich.table import Table

from chaos.account import History
from chaos.checker import Anomaly, unexplained
from chaos.history import Begin, Event, Fault, Hinted, Publish
from chaos.plot import timeline
from lanelog.devserver import DevServer

FROM_ITS_END: Final = frozenset({"server", "stall", "exhaustion", "disk", "promote", "restore", "restarts"}) | {
    "freeze",
    "shortage",
}
"""Nothing can move before these are over: recovery counts from then."""

HARMLESS: Final = frozenset({"snapshot", "clock", "grow", "slow", "expiry", "step", "revoke", "copy"}) | {
    "interrupt",
    "fork",
}
"""Nothing stands still because of these: there is nothing to recover from."""

SHOWN: Final = 50


@frozen(kw_only=True)
class Recovery:
    """What one fault cost: seconds until every lane it met had moved on. `disturbed`: the next fault came before."""

    fault: Fault
    seconds: float | None
    disturbed: bool


def recovery(history: History, fault: Fault) -> float | None:
    """Seconds from the fault until every lane whose handler it met had another one begun; None: it met none.

    What stops everybody counts from its end. A lane in which nothing was left to do is not waited for: it counts from
    its next message.
    """
    since = fault.end if fault.kind in FROM_ITS_END else fault.start
    waits = []
    for runs in history.lanes.values():
        met = [
            run
            for run in runs
            if run.at <= fault.start
            and (run.end is None or run.end.at > fault.start)
            and fault.met((run.begin.process,))
            and (run.died is None or run.died >= fault.start)
        ]
        later = bisect_right(runs, since, key=lambda run: run.at)
        if met and later < len(runs):
            begin = runs[later].begin
            published = history.acknowledged.get((begin.topic, begin.key, begin.id))
            waits.append(max(0.0, begin.at - max(since, published.at if published else since)))
    return max(waits, default=None)


def recoveries(history: History) -> list[Recovery]:
    """Each fault's."""
    found = []
    for fault in sorted(history.faults, key=lambda fault: fault.start):
        seconds = None if fault.kind in HARMLESS else recovery(history, fault)
        over = (fault.end if fault.kind in FROM_ITS_END else fault.start) + (seconds or 0)
        # What happened within a fault is part of it: the sessions killed during an exhaustion.
        disturbed = any(
            fault.start < other.start < over and other.end > fault.end and other.kind not in HARMLESS
            for other in history.faults
        )
        found.append(Recovery(fault=fault, seconds=seconds, disturbed=disturbed))
    return found


def about(server: DevServer, lease: float | None = None) -> dict[str, Any]:
    """What was run, on what."""
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = module.name.removesuffix(".__main__") if module else Path(sys.argv[0]).name
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m {name} {shlex.join(sys.argv[1:])}".strip(),
        "lanelog": {"version": importlib.metadata.version("lanelog"), "commit": commit.stdout.strip() or None},
        "server": {"family": server.family, "version": server.version},
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **({} if lease is None else {"lease": lease}),
    }


def counts(events: Sequence[Event]) -> dict[str, Any]:
    """How much was done."""
    outcomes = Counter(event.outcome for event in events if isinstance(event, Publish))
    told = sum(outcomes[o] for o in ("acknowledged", "unknown", "rolled-back"))
    begun = Counter(event.group for event in events if isinstance(event, Begin))
    again = Counter(event.group for event in events if isinstance(event, Begin) and event.attempt > 1)
    hinted = [event for event in events if isinstance(event, Hinted)]
    return {
        "published": outcomes["attempted"],
        "acknowledged": outcomes["acknowledged"],
        "rolled_back": outcomes["rolled-back"],
        "unknown": outcomes["unknown"] + outcomes["attempted"] - told,
        "hints": {"sent": sum(event.sent for event in hinted), "heard": sum(event.heard for event in hinted)},
        "handled": {
            group: {"deliveries": count, "later_attempts": again[group]} for group, count in sorted(begun.items())
        },
    }


def operated(history: History) -> list[dict[str, Any]]:
    """What the operator did, by verb: how often, how often with an unknown outcome, and to how many messages."""
    counted = []
    for verb in sorted({steer.verb for steer in history.steers}):
        steers = [steer for steer in history.steers if steer.verb == verb]
        moved = sum((steer.before or 0) - (steer.offset or 0) for steer in steers if verb == "seek" and steer.certain)
        messages = {"seek": moved, "skip": len(steers), "redrive": len(history.redriven)}.get(verb)
        unknown = sum(not steer.certain for steer in steers)
        counted.append({"verb": verb, "count": len(steers), "unknown": unknown, "messages": messages})
    return counted


def result(
    history: History, anomalies: Sequence[Anomaly], failures: Sequence[str], impossible: Mapping[str, str]
) -> dict[str, Any]:
    """For machines: everything the table shows, and each anomaly that nothing explains."""
    broken = unexplained(anomalies)
    began = min((event.at for event in history.events if isinstance(event, Publish)), default=0.0)
    by_cause = Counter((anomaly.kind, anomaly.explained_by) for anomaly in anomalies if anomaly.explained_by)
    return {
        "counts": counts(history.events),
        "explained": [
            {"kind": kind, "cause": cause, "count": count} for (kind, cause), count in sorted(by_cause.items(), key=str)
        ],
        "anomalies": dict(sorted(Counter(anomaly.kind for anomaly in broken).items())),
        "anomaly_details": [asdict(anomaly) for anomaly in broken[:SHOWN]],
        "operator": operated(history),
        "failures": list(failures),
        "left_out": dict(impossible),
        "faults": [
            {
                "kind": each.fault.kind,
                "start": round(each.fault.start - began, 3),
                "end": round(each.fault.end - began, 3),
                "processes": each.fault.processes,
                "recovery": None if each.seconds is None else round(each.seconds, 3),
                "disturbed": each.disturbed,
            }
            for each in recoveries(history)
        ],
    }


def write(output: Path, name: str, found: Mapping[str, Any], history: History, title: str) -> None:
    """The result and its picture, in a directory that is made."""
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    timeline(history, title, output / f"{name}.png")


def summary(found: Mapping[str, Any], title: str) -> Table:
    """The one table, of a result."""
    table = Table("what", "count", "detail", title=title, title_justify="left")
    counted = found["counts"]
    table.add_row("published", f"{counted['published']:,}", f"{counted['rolled_back']} rolled back")
    table.add_row("acknowledged", f"{counted['acknowledged']:,}", f"{counted['unknown']} more of unknown outcome")
    table.add_row(
        "hints heard", f"{counted['hints']['heard']:,}", f"{counted['hints']['sent']:,} sent; without killed processes"
    )
    for group, handled in counted["handled"].items():
        detail = f"{handled['later_attempts']} of them as a later attempt"
        table.add_row(f"handled by {group}", f"{handled['deliveries']:,}", detail)
    table.add_section()
    for row in found["explained"]:
        table.add_row(row["kind"], str(row["count"]), f"explained by {row['cause']}")
    for kind, count in found["anomalies"].items():
        table.add_row(f"[bold red]{kind}[/]", str(count), "UNEXPLAINED")
    table.add_row("[bold]anomalies[/]", str(sum(found["anomalies"].values())), "that no fault explains")
    table.add_section()
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for fault in found["faults"]:
        by_kind[fault["kind"]].append(fault)
    for kind, faults in sorted(by_kind.items()):
        label = "seen" if kind in {"slow", "expiry"} else "fault"
        table.add_row(f"{label}: {kind}", str(len(faults)), _recovered(faults))
    for row in found["operator"]:
        detail = [] if row["messages"] is None else [f"{row['messages']} messages"]
        detail += [f"{row['unknown']} of unknown outcome"] if row["unknown"] else []
        table.add_row(f"operator: {row['verb']}", str(row["count"]), ", ".join(detail))
    for kind, reason in found["left_out"].items():
        table.add_row(f"fault: {kind}", "0", f"left out: {reason}")
    return table


def _recovered(faults: Collection[Mapping[str, Any]]) -> str:
    waits = [fault["recovery"] for fault in faults if fault["recovery"] is not None and not fault["disturbed"]]
    detail = [f"lanes moved after {median(waits):.2f} s (median), {max(waits):.2f} s (worst)"] if waits else []
    if disturbed := sum(fault["disturbed"] for fault in faults):
        detail.append(f"{disturbed} met the next fault")
    return ", ".join(detail)
