"""`manage.py lanelog_status`: what is wrong, and what brings work back."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from lanelog.contrib.django.process_client import client
from lanelog.errors import LanelogError


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Prints the problems. It ends with 1 if there is one, as `lanelog status` does."""

    help = "Say what is wrong with topics, groups and lanes, and what brings work back."

    def handle(self, *_: Any, **__: Any) -> None:
        """See `Admin.status`."""
        try:
            found = client.admin.status()
        except LanelogError as error:
            raise CommandError(str(error)) from error
        for problem in found.problems:
            for line in problem.lines():
                self.stdout.write(line)
        if found.problems:
            raise CommandError(f"{len(found.problems)} problems", returncode=1)
        self.stdout.write(f"{found.topics} topics, no problem")
