"""The values that options take besides click's own: times, offsets, sizes.

Owns how their texts are read. Knows no option by name.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from lanelog.cli.command.times import FORMS, instant
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    Type = click.ParamType[Any]
else:
    Type = click.ParamType  # which older versions of click cannot subscript

_THOUSANDS: Final = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Time(Type):
    """A time as people write it: see `times.instant`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time. Raises ConfigurationError for a text that is none."""
        del ctx
        found = instant(str(value))
        if found is None:
            option = self.name if param is None else param.opts[0]
            raise ConfigurationError(f"{option} {value!r} is no time: write {FORMS}")
        return found


class Offset(Type):
    """An offset as tables show it, with or without separators between thousands."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert as click's integer does."""
        if isinstance(value, str) and _THOUSANDS.fullmatch(value):
            value = value.replace(",", "")
        return int(click.INT.convert(value, param, ctx))


class Size(Type):
    """A number of bytes, as Kubernetes and systemd write them: `512M`, `2G`, `512Mi`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes. K, M and G are powers of 1,024."""
        found = re.fullmatch(r"([1-9][0-9]*)([KMG]?)i?", str(value))
        if found is None:
            self.fail(f"{value!r} is no size: write 512M", param, ctx)
        return int(found[1]) * _UNITS[found[2]]
