"""The session of this package's own programs: what it says when it starts, who else decides that, what Ctrl-C does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

PROGRAMS = Path(__file__).with_name("programs")
TESTS = Path(__file__).parents[1]
PROGRAM = """
import signal
from lanelog.spark.session import start
interrupted = lambda *_: None
signal.signal(signal.SIGINT, interrupted)
session = start("quiet")
assert signal.getsignal(signal.SIGINT) is interrupted, "Ctrl-C is the program's own"
log = session._jvm.org.apache.logging.log4j.LogManager.getLogger("org.example.Printer")
log.warn("warm")
log.error("on fire")
session.stop()
"""
THEIRS = """
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = theirs: %m%n
"""


def said(**environ: str) -> list[str]:
    """What a session that starts and ends says, but for what Java itself says of its modules."""
    theirs = {"SPARK_LOCAL_IP", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT", "LOG4J_CONFIGURATION_FILE"}
    clean = {name: value for name, value in os.environ.items() if name not in theirs}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=clean | environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    return [line for line in ran.stderr.splitlines() if not line.startswith("WARNING: Using incubator modules")]


def test_a_session_of_our_own_starts_quietly_and_shows_errors() -> None:
    """Not a word of profiles, levels and host names; an error is logged. What Ctrl-C does is not changed."""
    (line,) = said()
    assert line.endswith(" ERROR Printer: on fire")


def test_whoever_configures_spark_says_what_it_logs(tmp_path: Path) -> None:
    """With a configuration directory of Spark's, its log4j2.properties is in charge, from the level to the form."""
    (tmp_path / "log4j2.properties").write_text(THEIRS)
    lines = said(SPARK_CONF_DIR=str(tmp_path))
    assert {"theirs: warm", "theirs: on fire"} <= set(lines)


def run(*arguments: str | Path) -> str:
    """What a Python program says on its standard output, whatever its exit status."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    return ran.stdout or ran.stderr


def test_ctrl_c_leaves_the_callers_session_in_step(lanelog_url: str, tmp_path: Path) -> None:
    """An interrupt ends replay, archive and analyze, and leaves no job; what is interrupted publishes nothing more."""
    said = [json.loads(line) for line in run(PROGRAMS / "interrupted.py", lanelog_url, tmp_path / "a").splitlines()]
    in_order = {"interrupted": True, "in_step": True, "rows": 7, "jobs": []}
    assert said == [
        *({"what": what, **in_order} for what in ("replay", "archive", "analyze")),
        {"what": "replay again", "messages": 40, "more_since": 0},
    ]


def test_a_test_that_runs_out_of_time_costs_no_other() -> None:
    """The tier's session is ended and made anew: the next test does not read the answer that the first one left."""
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", PROGRAMS / "out_of_time.py")
    assert "FAILED tests/spark/programs/out_of_time.py::test_waits_for_java" in said
    assert said.splitlines()[-1].startswith("1 failed, 1 passed")
