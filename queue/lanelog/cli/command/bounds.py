"""The bounds of a monitor: their options, and the alarm when one is exceeded.

Owns what a bound is compared with, and the line that says by how much it is exceeded. Reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import attrs
import click
from attrs import frozen

from lanelog._base.text import age, shown
from lanelog.cli.command import options

if TYPE_CHECKING:
    from lanelog.admin import GroupInfo

F = TypeVar("F", bound=Callable[..., Any])

LETTERS_MAX: Final = 9999
"""The greatest bound of --max-dead-letters. `Admin.dead_letters` reads at most one dead letter more."""


bounding_letters = click.option(
    "--max-dead-letters",
    type=click.IntRange(0, LETTERS_MAX),
    metavar="N",
    help="Exit with status 1 if there are more than N dead letters.",
)
_max_lag = click.option(
    "--max-lag",
    type=click.IntRange(0),
    metavar="N",
    help="Exit with status 1 if more than N messages are unsettled.",
)
_max_age = options.seconds(
    "--max-age", "Exit with status 1 if the oldest unsettled message is older than S seconds.", within=(0, None)
)


def monitored(function: F) -> F:
    """Add --max-lag and --max-age."""
    return _max_lag(_max_age(function))


class Measured(NamedTuple):
    """A group, topic or lane with the numbers that bounds are about."""

    name: str
    lag: int
    oldest: float | None
    """Seconds since its oldest unsettled message was written. None: nothing is unsettled."""
    exact: bool = True
    """False: there may be an older one."""


def measured(groups: Iterable[GroupInfo]) -> list[Measured]:
    """Return what bounds are about, of groups."""
    return [
        Measured(f"{shown(each.topic)} {shown(each.group)}", each.lag, each.oldest_age, each.oldest_age_exact)
        for each in groups
    ]


@frozen
class MonitorBounds:
    """The bounds of one call. None: there is no such bound."""

    max_lag: int | None = None
    max_age: float | None = None
    """In seconds."""
    max_dead_letters: int | None = None

    @classmethod
    def taken(cls, params: dict[str, Any]) -> Self | None:
        """Take the bounds out of the parameters of a command. None: it has no such options."""
        given = {name: params.pop(name) for name in list(params) if name in attrs.fields_dict(cls)}
        return cls(**given) if given else None

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return self != MonitorBounds()

    def alarms(self, what: Sequence[Measured], *, dying: Sequence[str] = (), left_out: str = "") -> tuple[str, ...]:
        """Return one line at most: which bound is exceeded and by how much, the worst first.

        Args:
            what: Groups, topics or lanes.
            dying: The names of those with more than `max_dead_letters`.
            left_out: Says that some were not read: nobody knows whether a bound holds for those.
        """
        max_lag, max_age = self.max_lag, self.max_age
        late = [(each.name, each.lag) for each in what if max_lag is not None and each.lag > max_lag]
        old = [
            (each.name, each.oldest)
            for each in what
            if max_age is not None and each.oldest is not None and each.oldest > max_age
        ]
        exceeded = {name for name, _ in old}
        unknown = [each.name for each in what if max_age is not None and not each.exact and each.name not in exceeded]
        parts = []
        if late:
            name, lag = max(late, key=lambda each: each[1])
            parts.append(f"lag {lag:,} > {max_lag:,} on {name}{_more(late)}")
        if old:
            name, oldest = max(old, key=lambda each: each[1])
            parts.append(f"oldest {age(oldest)} > {max_age:g}s on {name}{_more(old)}")
        if unknown:
            name = f"{unknown[0]}{_more(unknown)}"
            parts.append(f"the oldest age of {name} is a lower bound: too many lanes lag to know it exactly")
        if dying:
            parts.append(f"dead letters > {self.max_dead_letters} on {dying[0]}{_more(dying)}")
        if left_out and self.given:
            parts.append(left_out)
        return ("; ".join(parts),) if parts else ()


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""
