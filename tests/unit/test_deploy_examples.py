"""What can be checked of examples/deploy without a cluster, a container or systemd: fields, and each command line."""

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from lanelog._places import GroupTopic
from lanelog.admin.read.lag_statement import lag_statement
from lanelog.cli._worker import Size
from lanelog.metrics.log import _GROUPS
from lanelog.worker.target import find
from support.cli import all_verbs

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
AFTER_DRAIN = 5
GROUPS = ["billing", "shipping"]


def loaded(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def options_of(words: list[str]) -> dict[str, Any]:
    """What the command line makes of a command that begins with `lanelog`."""
    program, verb, *rest = words
    assert Path(program).name == "lanelog"
    return all_verbs()[verb].make_context(verb, rest).params


@pytest.fixture(autouse=True)
def some_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules connect at their import, which sends nothing."""
    monkeypatch.setenv("LANELOG_URL", "mysql://nobody@127.0.0.1:1/nowhere")


def test_every_file_is_looked_at() -> None:
    """A new one needs a test."""
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert files == {
        *(f"kubernetes/{name}.yaml" for name in (*GROUPS, "keda-prometheus", "keda-sql")),
        *("docker/Dockerfile", "docker/requirements.txt", "systemd/shop-worker@.service"),
    }


@pytest.mark.parametrize("group", GROUPS)
def test_a_deployment_runs_and_drains_one_group(group: str) -> None:
    """Its command is one, its probes ask where it listens, and its grace is longer than the drain."""
    (deployment,) = loaded(f"{group}.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == deployment["metadata"]["labels"]
    (container,) = spec["containers"]
    options = options_of([*container["command"], *container["args"]])
    (subscription,) = find(options["target"])._subscriptions
    assert (subscription.group, labels["group"]) == (group, group)
    assert spec["terminationGracePeriodSeconds"] >= options["drain_timeout"] + AFTER_DRAIN
    (port,) = container["ports"]
    assert options["health"] == f"0.0.0.0:{port['containerPort']}"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    limit = Size().convert(container["resources"]["limits"]["memory"], None, None)
    assert options["processes"] * options["max_memory"] < limit
    assert [each["name"] for each in container["env"]] == ["LANELOG_URL"]


@pytest.mark.parametrize("name", ["keda-prometheus.yaml", "keda-sql.yaml"])
def test_a_scaler_asks_for_the_lag_of_a_deployments_group(name: str) -> None:
    """By a metric that there is, or by the statement that the command line prints."""
    *others, scaled = loaded(name)
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert spec["scaleTargetRef"]["name"] == loaded("billing.yaml")[0]["metadata"]["name"]
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    metadata = trigger["metadata"]
    assert all(isinstance(value, str) for value in metadata.values())  # KEDA takes no numbers there
    if trigger["type"] == "prometheus":
        (metric,) = re.findall(r"\w+_messages", metadata["query"])
        assert metric in [gauge.name for gauge in _GROUPS]
        assert metadata["query"] == f'sum({metric}{{topic="orders",group="billing"}})'
        assert int(metadata["threshold"]) > 0
    else:
        (authentication,) = others
        assert authentication["kind"] == "TriggerAuthentication"
        assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
        assert metadata["query"].strip() == lag_statement(GroupTopic(topic="orders", group="billing"))
        assert int(metadata["queryValue"]) > 0


def test_the_unit_drains_before_it_is_killed() -> None:
    """SIGTERM reaches the supervisor alone, and the time until SIGKILL is longer than the drain."""
    unit = ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's names are case-sensitive
    unit.read(DEPLOY / "systemd/shop-worker@.service")
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    service = unit["Service"]
    for group in GROUPS:
        options = options_of(shlex.split(service["ExecStart"].replace("%i", group)))
        assert find(options["target"])._subscriptions[0].group == group
        assert int(service["TimeoutStopSec"]) >= options["drain_timeout"] + AFTER_DRAIN
    assert (service["KillMode"], service["Restart"]) == ("mixed", "always")


def test_the_image_starts_the_supervisor_itself() -> None:
    """Without a shell, which would keep its signals; and asks it for its health where it listens."""
    lines = (DEPLOY / "docker/Dockerfile").read_text().splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    assert [name for name, _ in steps] == [
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "RUN",
        "COPY",
        "USER",
        "HEALTHCHECK",
        "CMD",
    ]
    said = dict(steps)
    options = options_of(json.loads(said["CMD"]))
    asked = options_of(json.loads(said["HEALTHCHECK"].partition("CMD ")[2]))
    assert asked["address"] == f"http://{options['health']}/livez"
    assert find(options["target"])._subscriptions
    assert f"--uid {said['USER']}" in steps[1][1]
