"""A private MariaDB or MySQL for development, tests and the demo, started in under a second.

It never touches a database that is already on the machine, and what it starts dies with this process, however that
ends. It never reads LANELOG_URL, where an application's own database stands: a server for tests is given by its URL or
by LANELOG_TEST_URL. The command `lanelog dev-server`, the demo and the pytest plugin call `start`.

Kinds: `auto` takes the URL in LANELOG_TEST_URL, else a local server program, else Docker. `local` (MariaDB's program,
else MySQL's), `mysql-local` (MySQL's, also the one that tests/servers/mysql installs), `docker:IMAGE` and a URL
insist.
"""

from lanelog.devserver._choice import TEST_URL_VARIABLE, start
from lanelog.devserver._server import DATABASE, DevServer, ServerUnavailable

__all__ = ["DATABASE", "TEST_URL_VARIABLE", "DevServer", "ServerUnavailable", "start"]
