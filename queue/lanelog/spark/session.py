"""A Spark session for the programs of this package: Java looked for first, small and quiet where nobody says otherwise.

It never configures what spark-submit, a cluster or a configuration directory of Spark's has configured, and no
interruption of its caller leaves the session out of step. `archive`, `replay` and `analyze` call it.
"""

from __future__ import annotations

import contextvars
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

from lanelog._telemetry import get_logger
from lanelog.errors import ConfigurationError, LanelogError
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
"""Seconds for Java to tell its version, and for work that was interrupted to end."""
_BETWEEN_CANCELS: Final = 0.2

# What a session on one machine needs; everything else is Spark's own.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_LOGGING: Final = Path(__file__).with_name("_log4j2.properties")

log = get_logger("spark")


def in_session(
    app_name: str,
    spark: SparkSession | None,
    work: Callable[[SparkSession], T],
    stopping: threading.Event | None = None,
) -> T:
    """Run `work` with `spark`, or with a session of its own name, and return what it returns or raise what it raises.

    `work` runs in a thread of its own. py4j reads the answer to a call on the connection of the calling thread. An
    interruption within a call (Ctrl-C, a time-out that raises) leaves the answer unread, and every later call of that
    thread reads the answer to the call before. Here it meets a thread that only waits: the session stays in step.

    An interruption waits up to 30 s for `work` to end, and is raised. `work` is told by `stopping`, or, where there is
    none, by the cancellation of its jobs: a streaming query stops by itself, and takes the cancellation of a job of its
    own for a failure. Local properties of the caller's thread, such as a job group, are not those of `work`.
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
            log.warning("spark.still_running", program=app_name, waited=_PATIENCE)
        raise
    return call.result()


@define(eq=False)
class _Call(Generic[T]):
    """Work in a session, which a second thread can give up. Its tag is on every job that it starts."""

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
                raise LanelogError("interrupted before it began")  # noqa: TRY301 - nobody waits for it any more
            self._values.append(self.work(self.spark))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            self.ended.set()

    def give_up(self) -> None:
        """Cancel what runs and what still begins, from a third thread: a second Ctrl-C leaves that alone."""
        self._given_up.set()
        threading.Thread(target=self._cancel, name="lanelog-spark-cancel", daemon=True).start()

    def _cancel(self) -> None:
        while not self.ended.wait(_BETWEEN_CANCELS):  # a cancellation meets only the jobs that run at that moment
            if self.spark is not None:
                with suppress(Exception):  # where the session or the JVM is gone, its jobs are
                    self.spark.sparkContext.cancelJobsWithTag(self._tag)

    def result(self) -> T:
        """What the work returned; raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._values[0]


def start(app_name: str, **settings: str) -> SparkSession:
    """The running session, or a new one with the source registered; `settings`: `spark.…` names and values.

    Without a master (spark-submit's, or in `settings`) it is `local[2]`. Its time zone is UTC in any case.
    Raises ConfigurationError if there is no Java.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers take whatever python is in the PATH
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
    """Keep what Ctrl-C does: a context of Spark's would cancel its jobs instead, and tell the program nothing."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _logging() -> dict[str, str]:
    """Errors alone, from the JVM's first line on; whoever has configured Spark or its log has said what it logs."""
    from pyspark.find_spark_home import _find_spark_home

    place = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    names = (*(f"log4j2.{form}" for form in ("properties", "xml", "yaml", "yml", "json")), "spark-defaults.conf")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # the JVM is running
    if submitted or "LOG4J_CONFIGURATION_FILE" in os.environ or any((place / name).exists() for name in names):
        return {}
    # These stand before spark.driver.extraJavaOptions on the JVM's command line: what is said there goes.
    return {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"}


def check_java() -> None:
    """Raise ConfigurationError unless a Java that Spark runs on is found, where Spark looks for it."""
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
