"""Tables as an older version of the library left them."""

from typing import Any

from lanelog.migrations.steps import STEPS
from support.sql import rows


def set_back(raw: Any, version: int = 1) -> None:
    """Take away what was added after a version, and the record of it."""
    for step in reversed(STEPS):
        if step.version <= version:
            break
        for table, columns in step.columns.items():
            for column in columns:
                rows(raw, f"ALTER TABLE {table} DROP COLUMN {column}")
        for table in step.tables:
            rows(raw, f"DROP TABLE {table}")
    rows(raw, "DELETE FROM queue_schema WHERE version > %s", version)
