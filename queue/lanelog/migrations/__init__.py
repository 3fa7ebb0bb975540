"""Creates and upgrades lanelog's tables, and compares a database's tables with those that this library needs.

Existing tables are altered by the numbered steps only, which add columns. Any other difference is left to the operator:
the error names the statement that repairs it.

Code and tables of neighbouring versions work together. Code that finds older tables works without the columns of later
versions, and logs that once. Code that finds newer tables works on them, if their version admits it.
"""

from lanelog.migrations.checking import NotAdmitted, admit, check, locks_rows
from lanelog.migrations.declared import declared_tables
from lanelog.migrations.migrating import migrate
from lanelog.migrations.scripting import script
from lanelog.migrations.steps import VERSION

__all__ = ["VERSION", "NotAdmitted", "admit", "check", "declared_tables", "locks_rows", "migrate", "script"]
