"""A Spark session for the programs of this package: Java looked for first, small and quiet where nobody says otherwise.

It never configures what spark-submit, a cluster or a configuration directory of Spark's has configured. `archive`,
`replay` and `analyze` call it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lanelog.errors import ConfigurationError
from lanelog.spark._register import register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

OLDEST_JAVA: Final = 17
_NEEDED = (
    f"Spark needs Java {OLDEST_JAVA} or newer: install it (on Debian and Ubuntu: apt-get install "
    "openjdk-17-jre-headless) or set JAVA_HOME"
)
_PATIENCE: Final = 30.0

# What a session on one machine needs; everything else is Spark's own.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_LOGGING: Final = Path(__file__).with_name("_log4j2.properties")


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
