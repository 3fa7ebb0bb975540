"""Makes lanelog's tables and upgrades them, and says how those of a database differ from what this library needs.

It alters a table that exists only by the numbered steps, which add columns. About any other difference the operator
decides, with the statement that the error gives him. The client, the command line and Spark call it.

Code and tables of neighbouring versions work together. Code that finds older tables works without what later versions
added, and says so once. Code that finds newer tables works on them if they record that they admit it.
"""

from lanelog.migrations.checking import NotAdmitted, admit, check
from lanelog.migrations.migrating import migrate
from lanelog.migrations.steps import VERSION

__all__ = ["VERSION", "NotAdmitted", "admit", "check", "migrate"]
