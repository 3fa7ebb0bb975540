from __future__ import annotations

import enum
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lanelog
from lanelog._telemetry import LOGGER_NAME, get_logger


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    """Listen to all levels of the library's logger."""
    caplog.set_level(logging.DEBUG, logger=LOGGER_NAME)


def line(caplog: pytest.LogCaptureFixture) -> str:
    """The one message that was logged."""
    (record,) = caplog.records
    return record.getMessage()


def test_events_reach_the_handlers_of_the_stdlib_logger(caplog: pytest.LogCaptureFixture) -> None:
    """An application sees each event in its own logging, as one line with the bound context first."""
    get_logger(topic="merge", group="builders").bind(key="repo-42").warning("message.dead_lettered", offset=17)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("lanelog", "WARNING")
    assert record.getMessage() == "message.dead_lettered topic=merge group=builders key=repo-42 offset=17"


def test_each_method_logs_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    """The method's name is the record's level."""
    levels = ["debug", "info", "warning", "error"]
    for level in levels:
        getattr(get_logger(), level)("loop.turned")
    assert [record.levelname.lower() for record in caplog.records] == levels


def test_the_record_names_the_line_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A format with %(filename)s shows the line that logged, not the logger's own."""
    get_logger().info("lane.acquired")
    get_logger().exception("lane.lost")
    assert {(record.filename, record.funcName) for record in caplog.records} == {
        ("test_telemetry.py", "test_the_record_names_the_line_that_logged")
    }


def test_an_exception_brings_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """exception() in an except block, and exc_info= anywhere, give the record the traceback."""
    log = get_logger()
    error = ValueError("bad")
    try:
        raise error
    except ValueError:
        log.exception("handler.failed", error=error)
    log.error("handler.failed", exc_info=error)
    assert [record.exc_info[1] if record.exc_info else None for record in caplog.records] == [error, error]
    assert caplog.records[0].getMessage() == "handler.failed error='ValueError: bad'"


class Colour(enum.Enum):
    """An enum of the application."""

    RED = "red"


class Connection:
    """What must never be rendered, whatever it says of itself."""

    def __repr__(self) -> str:
        return "Connection(password='hunter2')"

    __str__ = __repr__


class Unprintable(Exception):
    """An exception whose text cannot be rendered."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("repo-42", "repo-42"),
        ("größe", "größe"),
        ("", "''"),
        ("two words", "'two words'"),
        ("a=b", "'a=b'"),
        ("line\nevent=forged", r"'line\nevent=forged'"),
        ("\x1b[31m\u2028\ud800", r"'\x1b[31m\u2028\ud800'"),
        ("50%d%s", "50%d%s"),
        (17, "17"),
        (True, "true"),
        (None, "none"),
        (0.1 + 0.2, "0.3"),
        (60.0, "60"),
        (Colour.RED, "red"),
        (["a", 1, "b c"], "[a,1,'b c']"),
        (b"secret", "<bytes>"),
        (Connection(), "<Connection>"),
        ({"password": "hunter2"}, "<dict>"),
        ([Connection()], "[<Connection>]"),
        (KeyError("k"), "\"KeyError: 'k'\""),
        (TimeoutError(), "TimeoutError"),
        (Unprintable(), "'Unprintable: (its text could not be rendered)'"),
    ],
)
def test_values_are_plain_text_on_one_line(caplog: pytest.LogCaptureFixture, value: object, shown: str) -> None:
    """Strings are quoted when they need it; of what may hold a secret, only the type is shown."""
    get_logger().info("lane.acquired", value=value)
    assert line(caplog) == f"lane.acquired value={shown}"


def test_a_long_value_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """An error that quotes a whole payload does not fill the log."""
    get_logger().info("handler.failed", error=ValueError("x" * 100_000))
    assert len(line(caplog)) < 2_100


def test_a_disabled_level_renders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """While its level is off, an event does not even look at its values; a logger follows a level that changes."""
    rendered: list[object] = []

    class Watched(Exception):
        def __str__(self) -> str:
            rendered.append(self)
            return "rendered"

    log = get_logger()
    caplog.set_level(logging.WARNING, logger=LOGGER_NAME)
    log.debug("message.fetched", error=Watched())
    assert (caplog.records, rendered) == ([], [])
    caplog.set_level(logging.DEBUG, logger=LOGGER_NAME)
    log.debug("message.fetched", error=Watched())
    assert len(rendered) == 1
    assert line(caplog).startswith("message.fetched ")


def test_a_broken_filter_of_the_application_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """An exception out of the application's logging is reported on stderr, as logging does, and not raised."""
    logger = logging.getLogger(LOGGER_NAME)

    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError(f"cannot filter {record.msg}")

    logger.addFilter(broken)
    try:
        get_logger().warning("lane.lost")
    finally:
        logger.removeFilter(broken)
    assert "cannot filter lane.lost" in capsys.readouterr().err


def test_basic_config_is_enough_to_see_the_events() -> None:
    """Without any logging set up not even errors are printed; logging.basicConfig() alone shows them."""
    code = (
        "import logging; from lanelog._telemetry import get_logger; get_logger().error('lane.lost')\n"
        "logging.basicConfig(level='INFO'); get_logger(key='k').info('lane.acquired', offset=3)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(lanelog.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == ("", "INFO:lanelog:lane.acquired key=k offset=3\n")
