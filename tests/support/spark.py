"""What the tests of the Spark tier share: types, a password, and how an error reads there."""

from collections.abc import Callable

from pyspark.sql import DataFrame

PASSWORD_VARIABLE = "SPARK_TIER_PASSWORD"
PASSWORD = "s3cret-of-the-tier"

Read = Callable[..., DataFrame]


def last_line(error: BaseException) -> str:
    """What a user reads of an error: Spark puts a Python error's own line last, before an SQL state of its own."""
    lines = [line.strip() for line in str(error).split("\nJVM stacktrace")[0].splitlines()]
    return next(line for line in reversed(lines) if line.startswith("lanelog."))
