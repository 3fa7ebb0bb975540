"""What `lanelog migrate` would do, as statements for other tools: Alembic, Flyway, Liquibase, a change request.

Never talks to a database. The caller says which version its tables have.
"""

from __future__ import annotations

from lanelog.errors import ConfigurationError
from lanelog.migrations.catalogue import ADD_COLUMN, RECORD
from lanelog.migrations.declared import checksum, declared_tables
from lanelog.migrations.steps import STEPS, VERSION, added, shape


def script(applied: int = 0) -> list[str]:
    """Return the statements that take tables of one version to this library's, in order.

    None ends with a semicolon; comments of columns contain some. None contains a colon before a word, or a percent
    sign, so SQLAlchemy's `text` takes each as it is. They run once: a column that is there already is an error.

    Args:
        applied: The version of the tables, as `SELECT MAX(version) FROM queue_schema` gives it. 0: there are none.

    Raises:
        ConfigurationError: This library knows no such version.

    Example::

        def upgrade():  # of a revision of Alembic
            for statement in script():
                op.execute(statement)
    """
    if type(applied) is not int or not 0 <= applied <= VERSION:
        raise ConfigurationError(f"the version of the tables must be 0 (none) to {VERSION}, not {applied!r}")
    tables, there = declared_tables(), shape(applied) if applied else {}
    made = [table.statement.rstrip().rstrip(";") for name, table in tables.items() if name not in there]
    columns = [
        ADD_COLUMN.format(table=table, definition=tables[table].definitions[column])
        for table, column in added()
        if table in there and column not in there[table].columns
    ]
    declared, record = f"'{checksum(tables.values())}'", RECORD.replace("%s", "{}")
    recorded = [record.format(step.version, declared, step.oldest_code) for step in STEPS[applied:]]
    return [*made, *columns, *recorded]
