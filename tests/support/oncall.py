"""Who is paged at night: looks at alerts, `lanelog status` and the front page, and does what they offer.

Either runs the command in a shell, or clicks through the dashboard.
"""

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

import lanelog
from lanelog.dashboard import Access, dashboard
from lanelog.metrics import alert_rules
from support.dashboards import Visitor
from support.prometheus import check_rules, serving
from support.waiting import eventually

QUIET = "nothing is stuck"
SCRAPES = 180
"""Minutes for which Prometheus gets the same scrape again and again. The slowest alert waits for one hour."""


@frozen
class Alert:
    """What Prometheus sends to the person on call."""

    name: str
    severity: str
    labels: dict[str, str]
    summary: str
    command: str


@frozen
class OnCall:
    """They know nothing but the URL of the database."""

    url: str
    place: Path
    """A directory for Prometheus' files."""
    clicks: bool
    """Whether they go by the dashboard, and not by the command."""

    def named(self, alert: Alert, state: str) -> str:
        """Hold that this alert fires and no other, that its command and the front page name the state, and agree.

        Return the command that they offer.
        """
        self.fires(alert)
        return self.agreed(self.shell(alert.command), state)

    def agreed(self, said: str, state: str) -> str:
        """Hold that `lanelog status` and the front page name the state. Return the command that both offer."""
        (entry,) = [lines for lines in said.split("\n\n") if lines.startswith(f"{state.upper()}  ")]
        offered = entry.splitlines()[-1].removeprefix("    $ ")
        cards = re.findall(r"<article.*?</article>", self.page(), re.DOTALL)
        mine = [card for card in cards if f"<h2>{state}</h2>" in card]
        assert mine, cards
        assert offered in re.findall(r'<pre class="command">\$ (.*)</pre>', unescape("\n".join(mine)))
        return offered

    def mend(self, offered: str) -> None:
        """Run the command as it stands: it shows what it would do, and says how it is done. Or click the button."""
        if self.clicks:
            self.click(offered)
            return
        (flag,) = re.findall(r"^nothing was changed: add (\S+) to do it$", self.shell(offered), re.MULTILINE)
        self.shell(f"{offered} {flag}")

    def click(self, offered: str) -> None:
        """Press the button of the card with this command, and give a reason."""
        with lanelog.connect(self.url) as client:
            visitor = Visitor(dashboard(client, Access(allow_actions=True)))
            cards = re.findall(r"<article.*?</article>", visitor.get("/").text, re.DOTALL)
            (card,) = [card for card in cards if f"$ {offered}<" in unescape(card)]
            button = re.findall(r'<a class="button" [^>]*href="(.*?)"', card)[0]
            preview = visitor.send("GET", unescape(button)).text
            (action,) = re.findall(r'<form method="post" action="(.*?)">', preview)
            done = visitor.post(unescape(action), why="paged at night")
            assert done.status_code == 200, done.text

    def quiet(self) -> None:
        """Hold that soon nothing is wrong any more, wherever they look."""
        eventually(lambda: QUIET in self.shell("lanelog status"), within=30, what="an end of the incident")
        assert "Nothing is stuck." in self.page()
        self.fires()

    def shell(self, line: str) -> str:
        """What a shell says to a line, on both of its streams."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            env={**os.environ, "PATH": path, "LANELOG_URL": self.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def page(self) -> str:
        """The front page, as a browser gets it."""
        with lanelog.connect(self.url) as client:
            return Visitor(dashboard(client)).get("/").text

    def fires(self, *alerts: Alert) -> None:
        """Hold that Prometheus, given what `lanelog metrics` answers now, fires these alerts of ours and no others."""
        with serving(self.url) as address, urlopen(address, timeout=20) as answer:  # noqa: S310 - our own process's
            scraped = answer.read().decode()
        series = [
            {"series": f"{sample.name}{{{labelled(sample.labels)}}}", "values": f"{sample.value}x{SCRAPES}"}
            for family in text_string_to_metric_families(scraped)
            for sample in family.samples
            if sample.name.startswith("lanelog_")
        ]
        assert series
        names = re.findall(r"- alert: (\w+)", alert_rules())
        expected = [
            {
                "eval_time": f"{SCRAPES}m",
                "alertname": name,
                "exp_alerts": [told(alert) for alert in alerts if alert.name == name],
            }
            for name in names
        ]
        test = {"interval": "1m", "input_series": series, "alert_rule_test": expected}
        check_rules(self.place, "test", json.dumps({"rule_files": ["rules.yaml"], "tests": [test]}))


def told(alert: Alert) -> dict[str, Any]:
    """An alert in the words of Prometheus' checker."""
    annotations = {
        "summary": alert.summary,
        "command": alert.command,
        "runbook_url": f"operations/runbook.html#{alert.name.lower()}",
    }
    return {"exp_labels": {"severity": alert.severity, **alert.labels}, "exp_annotations": annotations}


def labelled(labels: dict[str, str]) -> str:
    """Labels as an expression has them."""
    return ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())
