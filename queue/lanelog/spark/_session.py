"""A Spark session for the programs of this package: Java looked for first, small where nobody says how large.

It never configures what spark-submit or a cluster has configured. `archive`, `replay` and `analyze` call it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lanelog.errors import ConfigurationError
from lanelog.spark._register import register

if TYPE_CHECKING:
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
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


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
    defaults = {"spark.master": "local[2]", **_LOCAL} if local.startswith("local") else {}
    for name, value in {**defaults, "spark.sql.session.timeZone": "UTC"}.items():
        if not conf.contains(name):
            conf.set(name, value)
    for name, value in settings.items():
        conf.set(name, value)
    session = SparkSession.builder.appName(app_name).config(conf=conf).getOrCreate()
    register(session)
    return session


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
