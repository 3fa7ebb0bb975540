"""`manage.py lanelog_migrate`: make or alter lanelog's tables."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from lanelog.contrib.django.process_client import client
from lanelog.errors import LanelogError


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Makes or alters the tables, in the database of `LANELOG`."""

    help = "Make lanelog's tables, or alter them to this version. Does nothing where they are up to date."

    def handle(self, *_: Any, **__: Any) -> None:
        """See `Client.migrate`."""
        try:
            client.migrate()
        except LanelogError as error:
            raise CommandError(str(error)) from error
        self.stdout.write("lanelog's tables are up to date")
