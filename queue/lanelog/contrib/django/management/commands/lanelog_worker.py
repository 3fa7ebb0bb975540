"""`manage.py lanelog_worker`: all handlers of the applications and all tasks in one process."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.module_loading import autodiscover_modules

from lanelog.contrib.django.configuration import configuration
from lanelog.contrib.django.process_client import client
from lanelog.errors import LanelogError


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Runs the handlers until SIGTERM or Ctrl-C, and drains."""

    help = "Run the handlers of the applications' jobs.py, and tasks if lanelog is their backend, until SIGTERM."

    def add_arguments(self, parser: CommandParser) -> None:
        """See `Client.run`."""
        parser.add_argument("--workers", type=int, help="Threads of each handler (default: as it was decorated)")
        parser.add_argument("--drain-timeout", type=float, help="Seconds that a drain may take (default: no limit)")
        parser.add_argument("--health", help="HOST:PORT at which /livez and /readyz are served (default: nowhere)")

    def handle(self, *_: Any, **options: Any) -> None:
        """Import the handlers, and run them."""
        try:
            name = configuration().jobs
            autodiscover_modules(name)
            if getattr(settings, "TASKS", None) and (find_spec("django.tasks") or find_spec("django_tasks")):
                import_module("lanelog.contrib.django.tasks").subscribe()
            client.run(workers=options["workers"], drain_timeout=options["drain_timeout"], health=options["health"])
        except LanelogError as error:
            raise CommandError(str(error)) from error
        finally:
            client.close()
