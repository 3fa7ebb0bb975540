"""What can be checked of examples/deploy without a cluster or a container: fields, and each command line."""

import json
import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser, SectionProxy
from pathlib import Path
from typing import Any

import pytest
import yaml

from lanelog._base.places import GroupTopic
from lanelog._process import own_end
from lanelog.admin.read.lag_statement import lag_statement
from lanelog.cli.command.values import Size
from lanelog.metrics.log import _GROUPS
from lanelog.worker.silence import APART, ENDS, GRACE, SILENCE, STARTS
from lanelog.worker.supervisor import OVERDUE
from lanelog.worker.target import find
from support.cli import all_verbs

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "examples/deploy"
GROUPS = ["billing", "shipping"]
REPLACED = GRACE + APART
"""Seconds after which the supervisor has replaced each of two processes that hang, from the first failure of /livez."""
UNITS = ["lanelog-metrics.service", "lanelog-web.service", "shop-worker@.service"]


def loaded(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def service_of(name: str) -> SectionProxy:
    """A unit's section of this name."""
    unit = ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's names are case-sensitive
    unit.read(DEPLOY / "systemd" / name)
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    return unit["Service"]


def options_of(words: list[str]) -> dict[str, Any]:
    """What the command line makes of a command that begins with `lanelog`."""
    program, verb, *rest = words
    assert Path(program).name == "lanelog"
    return all_verbs()[verb].make_context(verb, rest).params


@pytest.fixture(autouse=True)
def some_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules connect at their import, which sends nothing."""
    monkeypatch.setenv("LANELOG_URL", "mysql://nobody@127.0.0.1:1/nowhere")


def test_every_file_has_a_test() -> None:
    """A new one needs a test."""
    files = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert files == {
        *(f"kubernetes/{name}.yaml" for name in (*GROUPS, "keda-prometheus", "keda-sql", "metrics")),
        *(f"systemd/{name}" for name in UNITS),
        *("docker/Dockerfile", "docker/requirements.txt"),
    }


@pytest.mark.parametrize("group", GROUPS)
def test_a_deployment_runs_and_drains_one_group(group: str) -> None:
    """The deployment has one command, its probes ask where it listens, and its grace is longer than the drain."""
    (deployment,) = loaded(f"{group}.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == deployment["metadata"]["labels"]
    (container,) = spec["containers"]
    options = options_of([*container["command"], *container["args"]])
    (subscription,) = find(options["target"])._subscriptions
    assert (subscription.group, labels["group"]) == (group, group)
    assert spec["terminationGracePeriodSeconds"] > options["drain_timeout"] + OVERDUE
    (port,) = container["ports"]
    assert options["health"] == f"0.0.0.0:{port['containerPort']}"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * (liveness["failureThreshold"] - 1) > REPLACED
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


def test_a_deployment_shows_the_metrics_that_the_scaler_asks_for() -> None:
    """One process runs, also during an update; it listens at the address that Prometheus has."""
    (deployment,) = loaded("metrics.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == deployment["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    assert options_of(container["command"])["listen"] == f"0.0.0.0:{port['containerPort']}"
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert container["livenessProbe"]["tcpSocket"]["port"] == port["name"]
    assert container["image"] == loaded("billing.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert "metrics" in (DEPLOY / "docker/requirements.txt").read_text()
    assert [each["name"] for each in container["env"]] == ["LANELOG_URL"]


def test_the_unit_drains_before_it_is_killed() -> None:
    """SIGTERM reaches the supervisor alone, and the time until SIGKILL is longer than the drain."""
    service = service_of("shop-worker@.service")
    for group in GROUPS:
        options = options_of(shlex.split(service["ExecStart"].replace("%i", group)))
        assert find(options["target"])._subscriptions[0].group == group
        assert int(service["TimeoutStopSec"]) > options["drain_timeout"] + OVERDUE
    assert (service["KillMode"], service["Restart"]) == ("mixed", "always")


@pytest.mark.parametrize("verb", ["metrics", "web"])
def test_a_unit_shows_the_log_to_this_machine_alone(verb: str) -> None:
    """The service listens on this machine alone, with the account of a reader and without actions."""
    service = service_of(f"lanelog-{verb}.service")
    words = shlex.split(service["ExecStart"])
    options = options_of(words)
    assert words[1] == verb
    assert options["listen"].startswith("127.0.0.1:")
    assert not options.get("allow_actions")
    assert service["EnvironmentFile"].endswith("reader.env")
    assert service["Restart"] == "always"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """Each name and value in them; the program is one that is there, as it would be on the user's machine."""
    program = tmp_path / "lanelog"
    program.touch(mode=0o755)
    for name in UNITS:
        unit = (DEPLOY / "systemd" / name).read_text()
        text, found = re.subn(r"^ExecStart=\S+", f"ExecStart={program}", unit, flags=re.MULTILINE)
        assert found == 1
        (tmp_path / name.replace("@", "@billing")).write_text(text)
    units = sorted(tmp_path.glob("*.service"))
    assert len(units) == len(UNITS)
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_starts_the_supervisor_itself() -> None:
    """Without a shell, which would keep its signals; and asks it for its health where it listens."""
    lines = (DEPLOY / "docker/Dockerfile").read_text().splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    assert " ".join(name for name, _ in steps) == "FROM RUN WORKDIR COPY RUN COPY USER HEALTHCHECK CMD"
    said = dict(steps)
    options = options_of(json.loads(said["CMD"]))
    asked = options_of(json.loads(said["HEALTHCHECK"].partition("CMD ")[2]))
    assert asked["address"] == f"http://{options['health']}/livez"
    assert find(options["target"])._subscriptions
    assert f"--uid {said['USER']}" in steps[1][1]
    seconds, tries = re.findall(r"--interval=(\d+)s .*--retries=(\d+)", said["HEALTHCHECK"])[0]
    assert int(seconds) * (int(tries) - 1) > REPLACED
    (patience,) = re.findall(r"--stop-timeout (\d+)", "\n".join(lines))
    assert int(patience) > options["drain_timeout"] + OVERDUE


@pytest.mark.parametrize(
    "name", ["docker/Dockerfile", *(f"kubernetes/{group}.yaml" for group in GROUPS), "systemd/shop-worker@.service"]
)
def test_a_comment_says_the_seconds_of_the_code(name: str) -> None:
    """The seconds are those after the drain's time-out, and those until a hung process makes the probe fail."""
    text = (DEPLOY / name).read_text()
    assert re.findall(r"(\d+) s after which", text) == [f"{OVERDUE:.0f}"]
    assert re.findall(r"fails it for (\d+) s", text) == [f"{GRACE:.0f}"] * name.startswith("kubernetes")


def test_the_page_says_the_seconds_of_the_code() -> None:
    """Of the drain, of a hung process, and of the probes in the manifests."""
    page = " ".join((ROOT / "docs/howto/workers.md").read_text().split())
    assert re.findall(r"`--drain-timeout` \+ (\d+) s", page) == [f"{OVERDUE:.0f}"] * 2
    assert f"sends SIGKILL {OVERDUE:.0f} s after that time-out" in page
    assert f"after {SILENCE + GRACE:.0f} s. `/livez` has failed for {GRACE:.0f} s by then" in page
    assert f"after {GRACE:.0f} s in which `/livez` failed" in page
    assert f"no report for {SILENCE:.0f} s" in page
    assert f"ends one every {APART:.0f} s" in page
    assert f"After {ENDS:.0f} s, the supervisor kills it" in page
    assert f"waits for at most {own_end.WRITES:.0f} s" in page
    assert f"exit status {own_end.STATUS}." in page
    assert (STARTS, "ten minutes after its start" in page) == (600.0, True)
    liveness = loaded("billing.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    failures, period = liveness["failureThreshold"], liveness["periodSeconds"]
    assert f"Set `failureThreshold: {failures}`" in page
    assert (
        f"period of {period} s, the kubelet restarts the container after at least {(failures - 1) * period} s" in page
    )
    assert f"replaces [a hung process](#hung-processes) after {GRACE:.0f} s of failures" in page
