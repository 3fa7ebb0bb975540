"""The Spark session of the tests: small, quiet, and made anew when it is out of step.

py4j reads the answer to a call on the connection of the calling thread. What interrupts a call (a time-out, Ctrl-C)
leaves its answer unread, and every later call reads the answer to the call before. One test that ran out of time must
not fail all those behind it.
"""

import random
import sys
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import lanelog.spark
from lanelog.errors import ConfigurationError
from lanelog.spark.session import check_java

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.testing=true",
    "spark.log.level": "ERROR",
    # The tests' queries are small: Spark would take longer to generate and compile code for them than they run. Spark
    # allows that only with spark.testing.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
}


class Sessions:
    """One session at a time, with two cores, one JVM and three attempts at each task."""

    def __init__(self) -> None:
        self.python = sys.executable
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session, if it answers in step; else a new one."""
        if self._session is not None and not in_step(self._session):
            self.kill()
        if self._session is None:
            self._session = started(self.python)
        return self._session

    def kill(self) -> None:
        """End a JVM to which nothing can be said any more, and forget all that pyspark keeps of it."""
        if self._session is None:
            return
        gateway: Any = SparkContext._gateway
        gateway.proc.kill()
        gateway.proc.wait()
        gateway.shutdown_callback_server()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        self._session = None

    def stop(self) -> None:
        """End the session in good order."""
        if self._session is not None:
            self._session.stop()
            self._session = None


def started(python: str) -> SparkSession:
    try:
        check_java()
    except ConfigurationError as exc:
        pytest.fail(str(exc), pytrace=False)
    builder = SparkSession.builder.master("local[2,3]").appName("lanelog tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.pythonExec = python  # for the source that is registered next
    lanelog.spark.register(session)
    return session


def in_step(session: SparkSession) -> bool:
    """Whether each of two calls gets its own answer."""
    for _ in range(2):
        said = random.randrange(1 << 30)
        try:
            answer = session.sparkContext._jvm.java.lang.Integer.parseInt(str(said))  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - an answer to another call is misread in many ways, and a JVM may be gone
            return False
        if answer != said:
            return False
    return True
