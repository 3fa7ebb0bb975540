"""Django: one client of a process, publishing and acking with the commit of `atomic()`, commands. Needs Django alone.

`INSTALLED_APPS` has "lanelog.contrib.django". Settings may have `LANELOG`, a dict: `database` (the alias, "default"),
`jobs` (the name of the modules with handlers, "jobs") and `connect` (options of `lanelog.connect`).
"""

from lanelog.contrib.django.connections import close_old_connections
from lanelog.contrib.django.process_client import client
from lanelog.contrib.django.transactions import ack, publish

__all__ = ["ack", "client", "close_old_connections", "publish"]
