"""A private MariaDB or MySQL for development, tests and the demo, started in under a second.

Never touches a database that is already on the machine. A server that it starts dies with this process, however the
process ends. Never reads LANELOG_URL, the database of an application: a server for tests is given by its URL or by
LANELOG_TEST_URL.

Kinds: `auto` takes the URL in LANELOG_TEST_URL, else a local server program, else Docker. The other kinds accept no
substitute: `local` (MariaDB's program, else MySQL's), `mysql-local` (MySQL's, also the one that tests/servers/mysql
installs), `docker:IMAGE`, and a URL.
"""

from lanelog.devserver._choice import TEST_URL_VARIABLE, start
from lanelog.devserver._server import DATABASE, DevServer, ServerUnavailable

__all__ = ["DATABASE", "TEST_URL_VARIABLE", "DevServer", "ServerUnavailable", "start"]
