"""A Spark session for the programs of this package: it checks for Java first, and is small and quiet by default.

Owns also how a program for spark-submit ends. Never overrides what spark-submit, a cluster or a configuration directory
of Spark has configured. An interruption of the caller does not leave the session out of step.
"""

from __future__ import annotations

import contextvars
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from attrs import define, field

from lanelog._facts import spark as facts
from lanelog.errors import ConfigurationError, LanelogError, SchemaError
from lanelog.spark.errors import in_one_line
from lanelog.spark.source.register import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

T = TypeVar("T")

OLDEST_JAVA: Final = 17
_NEEDED = (
    f"Spark needs Java {OLDEST_JAVA} or newer: install it (on Debian and Ubuntu: apt-get install "
    "openjdk-17-jre-headless) or set JAVA_HOME"
)
_PATIENCE: Final = 30.0
"""Seconds for Java to print its version, and for interrupted work to end."""
_BETWEEN_CANCELS: Final = 0.2

# Settings of a session on one machine; everything else is Spark's default.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_LOGGING: Final = Path(__file__).with_name("_log4j2.properties")


def in_session(
    app_name: str,
    failed: str,
    spark: SparkSession | None,
    work: Callable[[SparkSession], T],
    stopping: threading.Event | None = None,
) -> T:
    """Run `work` with a session, in a thread of its own, and return its result.

    py4j reads the answer to a call on the connection of the calling thread. An interruption within a call (Ctrl-C, a
    time-out that raises) leaves the answer unread, and every later call of that thread reads the answer of the call
    before. Here the interruption meets the caller's thread, which only waits, so the session stays in step.

    An interruption is raised once `work` has ended, at the latest after 30 seconds. Local properties of the caller's
    thread, such as a job group, do not hold for `work`.

    Args:
        app_name: Name of a session that is started.
        failed: The text before the first line of an error of Spark or of the disk.
        spark: The session to use. None: the running one, or a new one.
        work: The work. Its error is raised, one of Spark or of the disk as a LanelogError.
        stopping: Set at an interruption, to stop `work`. None: the jobs of `work` are cancelled instead. A streaming
            query needs `stopping`, because it takes the cancellation of its job for a failure.
    """
    call = _Call(app_name, spark, work)
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(call.run,), name="lanelog-spark", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException:
        if stopping is None:
            call.give_up()
        else:
            stopping.set()
        if not call.ended.wait(_PATIENCE):
            facts.spark_still_running(program=app_name, waited=_PATIENCE)
        raise
    with in_one_line(failed):
        return call.result()


@define(eq=False)
class _Call(Generic[T]):
    """Work in a session. A second thread can give it up. Every job that it starts has its tag."""

    app_name: str
    spark: SparkSession | None
    work: Callable[[SparkSession], T]
    ended: threading.Event = field(factory=threading.Event, init=False)
    _tag: str = field(factory=lambda: f"lanelog-{secrets.token_hex(8)}", init=False)
    _given_up: threading.Event = field(factory=threading.Event, init=False)
    _values: list[T] = field(factory=list, init=False)
    _error: BaseException | None = field(default=None, init=False)

    def run(self) -> None:
        """Start the session, if there is none, and do the work."""
        try:
            self.spark = self.spark or start(self.app_name)
            self.spark.sparkContext.addJobTag(self._tag)
            if self._given_up.is_set():
                raise LanelogError("interrupted before it began")  # noqa: TRY301 - no thread waits for it any more
            self._values.append(self.work(self.spark))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            self.ended.set()

    def give_up(self) -> None:
        """Cancel all jobs, also later ones, from a thread of its own, which a second Ctrl-C does not interrupt."""
        self._given_up.set()
        threading.Thread(target=self._cancel, name="lanelog-spark-cancel", daemon=True).start()

    def _cancel(self) -> None:
        while not self.ended.wait(_BETWEEN_CANCELS):  # one cancellation only stops the jobs of that moment
            if self.spark is not None:
                with suppress(Exception):  # if the session or the JVM is gone, so are its jobs
                    self.spark.sparkContext.cancelJobsWithTag(self._tag)

    def result(self) -> T:
        """Return the result of the work, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._values[0]


def program(run: Callable[[], dict[str, object]]) -> int:
    """Run a program and print its result as JSON. Return the exit status: 0 done, 1 failed, 2 refused."""
    try:
        done = run()
    except LanelogError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program prints
        return 2 if isinstance(error, ConfigurationError | SchemaError) else 1
    print(json.dumps(done))  # noqa: T201 - a program prints
    return 0


def names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(filter(None, text.split(",")))


def start(app_name: str, **settings: str) -> SparkSession:
    """Return the running session, or start one, with the source registered.

    Without a master (of spark-submit, or in `settings`) it is `local[2]`. Its time zone is UTC, unless it is
    configured.

    Args:
        app_name: Name of the application.
        settings: Names and values of Spark's settings (`spark.…`).

    Raises:
        ConfigurationError: There is no Java.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the python of the PATH
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    conf = SparkConf()
    local = settings.get("spark.master", conf.get("spark.master", "local")) or "local"
    defaults = {"spark.master": "local[2]", **_LOCAL, **_logging()} if local.startswith("local") else {}
    for name, value in {**defaults, "spark.sql.session.timeZone": "UTC"}.items():
        if not conf.contains(name):
            conf.set(name, value)
    for name, value in settings.items():
        conf.set(name, value)
    with _own_interrupt():
        session = SparkSession.builder.appName(app_name).config(conf=conf).getOrCreate()
    register(session)
    return session


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep the handler of Ctrl-C. Spark's own would cancel its jobs, and not interrupt the program."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _logging() -> dict[str, str]:
    """Return settings that log only errors, from the JVM's first line on; none if Spark or its log is configured."""
    from pyspark.find_spark_home import _find_spark_home

    directory = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    names = (*(f"log4j2.{form}" for form in ("properties", "xml", "yaml", "yml", "json")), "spark-defaults.conf")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # the JVM is running
    if submitted or "LOG4J_CONFIGURATION_FILE" in os.environ or any((directory / name).exists() for name in names):
        return {}
    # These stand before spark.driver.extraJavaOptions on the JVM's command line, which overrides them.
    return {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"}


def check_java() -> None:
    """Raise ConfigurationError unless Spark would find a Java that it runs on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home!r} and has no bin/java" if home else "there is no java in the PATH"
        raise ConfigurationError(f"{where}. {_NEEDED}")
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark is about to start
            [java, "-version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        raise ConfigurationError(f"{java} does not run. {_NEEDED}") from None
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if version is not None and int(version[1]) < OLDEST_JAVA:
        raise ConfigurationError(f"{java} is Java {version[1]}. {_NEEDED}")
