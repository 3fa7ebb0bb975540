import enum
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

import lanelog
from lanelog._facts.fact import Fact, Room
from lanelog._facts.log import LOGGER_NAME, Level
from support.refusing import Mute
from support.scripts import ran


def fact(name: str, level: Level = "INFO", room: str = "worker") -> Fact[...]:
    """An event that nothing of the library declares."""

    def declared() -> None:
        """Nothing."""

    return Fact(name, level, Room(room), declared)


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    """Listen to all levels of the library's logger."""
    caplog.set_level(logging.DEBUG, logger=LOGGER_NAME)


def line(caplog: pytest.LogCaptureFixture) -> str:
    """The one message that was logged."""
    (record,) = caplog.records
    return record.getMessage()


def test_events_reach_the_handlers_of_the_stdlib_logger(caplog: pytest.LogCaptureFixture) -> None:
    """An application sees each event in its own logging, as one line with the fields in the order of the call."""
    fact("message.dead_lettered", "WARNING")(topic="merge", group="builders", key="repo-42", offset=17)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("lanelog.worker", "WARNING")
    assert record.getMessage() == "message.dead_lettered topic=merge group=builders key=repo-42 offset=17"


def test_each_method_logs_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    """The name of the room's method that declares the event is the record's level."""
    room, levels = Room("worker"), ["debug", "info", "warning", "error"]
    for level in levels:

        @getattr(room, level)("loop.turned")
        def turned() -> None:
            """Nothing."""

        turned()
    assert [record.levelname.lower() for record in caplog.records] == levels
    assert [each.level.lower() for each in room.facts] == levels


def test_the_record_names_the_line_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A format with %(filename)s shows the line that logged, not the logger's own."""
    fact("lane.acquired")()
    fact("lane.lost")(exc_info=True)
    assert {(record.filename, record.funcName) for record in caplog.records} == {
        ("test_log.py", "test_the_record_names_the_line_that_logged")
    }


def test_an_exception_brings_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """`exc_info` is True in an except block, or an exception anywhere."""
    failed = fact("handler.failed", "ERROR")
    error = ValueError("bad")
    try:
        raise error
    except ValueError:
        failed(error=error, exc_info=True)
    failed(exc_info=error)
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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("repo-42", "repo-42"),
        ("größe", "größe"),
        ("", "''"),
        ("two words", "'two words'"),
        ("a=b", "'a=b'"),
        ("line\nevent=forged", r"'line\nevent=forged'"),
        ("\x1b[31m\u2028\ud800", r"'\x1b[31m\u2028\\ud800'"),
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
        (Mute(), "'Mute: (its text could not be rendered)'"),
    ],
)
def test_values_are_plain_text_on_one_line(caplog: pytest.LogCaptureFixture, value: object, shown: str) -> None:
    """Strings are quoted when they need it; of what may hold a secret, only the type is shown."""
    fact("lane.acquired")(value=value)
    assert line(caplog) == f"lane.acquired value={shown}"


def test_a_long_value_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """An error that quotes a whole payload does not fill the log."""
    fact("handler.failed")(error=ValueError("x" * 100_000))
    assert len(line(caplog)) < 2_100


def test_a_disabled_level_renders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """While its level is off, an event does not even look at its values; a logger follows a level that changes."""
    rendered: list[object] = []

    class Watched(Exception):
        def __str__(self) -> str:
            rendered.append(self)
            return "rendered"

    fetched = fact("message.fetched", "DEBUG")
    caplog.set_level(logging.WARNING, logger=LOGGER_NAME)
    fetched(error=Watched())
    assert (caplog.records, rendered) == ([], [])
    caplog.set_level(logging.DEBUG, logger=LOGGER_NAME)
    fetched(error=Watched())
    assert len(rendered) == 1
    assert line(caplog).startswith("message.fetched ")


def test_a_broken_filter_of_the_application_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """An exception out of the application's logging is reported on stderr, as logging does, and not raised."""
    logger = logging.getLogger(f"{LOGGER_NAME}.worker")

    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError(f"cannot filter {record.msg}")

    logger.addFilter(broken)
    try:
        fact("lane.lost", "WARNING")()
    finally:
        logger.removeFilter(broken)
    assert "cannot filter lane.lost" in capsys.readouterr().err


def in_a_process_of_its_own(code: str) -> tuple[str, str]:
    """What a program that does this prints, to stdout and stderr."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lanelog.__file__).parents[1])}
    begin = (
        "import logging; from lanelog._facts.fact import Fact, Room\n"
        "def log(level, name, **fields): Fact(name, level, Room('worker'), lambda: None)(key='k', **fields)\n"
    )
    done = ran(sys.executable, "-c", begin + code, env=environment)
    assert done.returncode == 0
    return done.stdout, done.stderr


def test_without_any_logging_set_up_warnings_are_printed_with_their_tracebacks() -> None:
    """Python's own last resort prints them to stderr; a normal life stays silent."""
    stdout, stderr = in_a_process_of_its_own(
        "log('INFO', 'lane.lost')\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    log('WARNING', 'handler.failed', exc_info=error)"
    )
    assert stdout == ""
    assert stderr.startswith("handler.failed key=k\nTraceback (most recent call last):\n")
    assert stderr.endswith("\nZeroDivisionError: division by zero\n")


def test_basic_config_is_enough_to_see_all_events() -> None:
    """logging.basicConfig() alone shows those of a normal life as well."""
    assert in_a_process_of_its_own("logging.basicConfig(level='INFO'); log('INFO', 'lane.acquired', offset=3)") == (
        "",
        "INFO:lanelog.worker:lane.acquired key=k offset=3\n",
    )


def test_a_traceback_that_no_stream_can_be_written_with_is_escaped() -> None:
    """A lone surrogate in an exception's text, as of a file name, costs no event and no fault of logging's own."""
    stdout, stderr = in_a_process_of_its_own(
        "import sys\nlogging.basicConfig(stream=sys.stdout)\n"
        "log('WARNING', 'handler.failed', error='\\ud800', exc_info=ValueError('caf\\udce9'))"
    )
    assert (stderr, stdout.splitlines()[1:]) == ("", [r"ValueError: caf\udce9"])


def test_fields_are_attributes_of_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """A JSON formatter indexes topic, key, group, offset and attempt as the values that they are."""
    fact("message.dead_lettered", "ERROR")(topic="merge", offset=17, key="\ud800", error=ValueError("no"))
    (record,) = caplog.records
    fields = {"event": "message.dead_lettered", "topic": "merge", "offset": 17, "key": "\\ud800"}
    fields["error"] = "ValueError: no"
    assert {name: getattr(record, name) for name in fields} == fields


def test_a_field_whose_name_is_taken_gets_a_prefix(caplog: pytest.LogCaptureFixture) -> None:
    """The attributes of logging, and those of the application's record factory, are not overwritten."""

    def factory(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = logging.LogRecord(*arguments, **more)
        record.topic = "the application's"
        return record

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory)
    try:
        fact("replay.done")(name="n", topic="t")
    finally:
        logging.setLogRecordFactory(before)
    (record,) = caplog.records
    assert (record.name, record.__dict__["topic"]) == ("lanelog.worker", "the application's")
    assert (record.__dict__["lanelog_name"], record.__dict__["lanelog_topic"]) == ("n", "t")


def test_records_are_grouped_by_their_event(caplog: pytest.LogCaptureFixture) -> None:
    """The record's template is the event, so that who groups by template makes one issue of a thousand messages."""
    fact("message.dead_lettered", "ERROR")(offset=17)
    assert caplog.records[0].msg == "message.dead_lettered %s"


def test_structlog_in_the_application_renders_the_fields_as_keys() -> None:
    """ProcessorFormatter with ExtraAdder, as for any other library's records; the event is the event alone."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
    )
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(formatter)
    logging.getLogger(LOGGER_NAME).addHandler(handler)
    try:
        fact("message.dead_lettered", "ERROR")(topic="merge", offset=17, name="n")
    finally:
        logging.getLogger(LOGGER_NAME).removeHandler(handler)
    fields = {"lanelog_name": "n", "level": "error", "offset": 17, "topic": "merge"}
    assert json.loads(handler.stream.getvalue()) == {"event": "message.dead_lettered", **fields}


def test_context_variables_of_the_application_are_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A request's id is in the events of what the request does. lanelog's own fields win, and values are plain."""
    failed = fact("publish.notification_failed", "WARNING", "publisher")
    with structlog.contextvars.bound_contextvars(
        request_id="r-1", topic="x", event="x", exc_info=True, token=b"secret"
    ):
        failed(topic="merge", key="k")
    failed(topic="merge")
    within, behind = caplog.records
    event, *fields = within.getMessage().split()
    assert (event, fields[:2]) == ("publish.notification_failed", ["topic=merge", "key=k"])
    assert {*fields[2:]} == {"request_id=r-1", "token=<bytes>"}
    assert (within.__dict__["request_id"], within.exc_info) == ("r-1", None)
    assert behind.getMessage() == "publish.notification_failed topic=merge"


def test_structlog_is_left_to_the_application() -> None:
    """The library leaves structlog unconfigured, and an application's configuration does not reach lanelog's events."""
    stdout, stderr = in_a_process_of_its_own(
        "import structlog, sys\nassert not structlog.is_configured()\n"
        "structlog.configure(processors=[lambda *_: 1 / 0], wrapper_class=None, logger_factory=None)\n"
        "logging.basicConfig(level='INFO', stream=sys.stdout); log('INFO', 'lane.acquired', topic='t')"
    )
    assert (stdout, stderr) == ("INFO:lanelog.worker:lane.acquired key=k topic=t\n", "")


def test_disabled_loggers_are_reported_after_a_check_that_found_none() -> None:
    """An application may configure logging between two subscriptions. The event's own logger is disabled then, too."""
    program = (
        "import logging.config\n"
        "from lanelog._facts.logging import report_disabled\n"
        "from lanelog._facts.engine import worker\n"
        "report_disabled()\n"
        "logging.config.dictConfig({'version': 1, 'handlers': {'h': {'class': 'logging.StreamHandler'}},\n"
        "                           'root': {'handlers': ['h'], 'level': 'INFO'}})\n"
        "report_disabled()\n"
        "report_disabled()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("loggers.disabled") == 1
    assert "lanelog.worker" in done.stderr
