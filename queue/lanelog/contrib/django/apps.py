"""The application as Django knows it. It has no models: `lanelog_migrate` makes lanelog's tables."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from lanelog.contrib.django.configuration import check


class LanelogConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """The application "lanelog"."""

    name = "lanelog.contrib.django"
    label = "lanelog"

    def ready(self) -> None:
        """Register the system check."""
        checks.register(check)
