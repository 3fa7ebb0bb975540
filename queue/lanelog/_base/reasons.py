"""The reason of a dead letter: its error without the parts that differ each time, and a short name of that text.

Owns which errors are alike, for administration and for Spark, which has the same patterns. Reads nothing. A reason has
no digit, so the reason of a reason is the reason itself. A name is made from the text alone: it is the same tomorrow,
and in any process.
"""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

ERROR_MAX: Final = 1000
"""Characters of an error that a statement reads."""
REASON_MAX: Final = 200
"""The most characters of a reason."""

# The patterns are written for Python and for Java: with ASCII classes, and without `\b`, which differ there.

FIRST_LINE: Final = r"\A[ \t\n\x0B\f\r]*([^\r\n]*)"
"""The first line that is not blank."""

VARIABLE: Final = (
    r"(?=[0-9A-Fa-f])(?:"
    r"(?<![0-9A-Za-z_])(?=[A-Fa-f-]*[0-9])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Za-z_])"
    r"|(?<![0-9A-Za-z_])0[xX][0-9A-Fa-f]+(?![0-9A-Za-z_])"
    r"|(?<![0-9A-Za-z_])(?=[A-Fa-f]*[0-9])[0-9A-Fa-f]{12,}(?![0-9A-Za-z_])"
    r"|[0-9]+(?:[.,][0-9]+)*)"
)
"""What differs each time: an id (8-4-4-4-12), a hexadecimal number, a long hexadecimal name with at least one digit,
and numbers as people write them: 7, 3.5, 1,234.5, 10.11.19."""

_FIRST_LINE = re.compile(FIRST_LINE)
_VARIABLE = re.compile(VARIABLE)

NAME_MIN: Final = 4
"""Hexadecimal digits of a name, at least. Names that would be equal have more."""
_NAME = re.compile(r"r-([0-9a-f]{4,64})")


def reason_of(error: str | None) -> str:
    """Return the reason in an error: its first line that is not blank, each part that varies as `#`. '': no error."""
    found = _FIRST_LINE.match((error or "")[:ERROR_MAX])
    line = found[1].strip(" ") if found else ""
    return _VARIABLE.sub("#", line).strip(" ")[:REASON_MAX].rstrip(" ")


def is_name(text: str) -> bool:
    """Return whether a text has the form of a short name: `r-4f2a`."""
    return _NAME.fullmatch(text) is not None


def is_named(reason: str, name: str) -> bool:
    """Return whether a short name, of any length, is one of this reason."""
    return _longest(reason).startswith(name)


def takes(chosen: str | None, reason: str) -> bool:
    """Return whether this reason is among the chosen ones: all (None), one, or those of a short name."""
    return chosen is None or chosen == reason or (is_name(chosen) and is_named(reason, chosen))


def names_of(reasons: Collection[str]) -> dict[str, str]:
    """Return a short name of each reason, which is the name of no other one of them."""
    given = set(reasons)
    longest = {reason: _longest(reason) for reason in given}
    ordered = sorted(longest.values())
    alike: dict[str, int] = dict.fromkeys(ordered, 0)
    for one, other in pairwise(ordered):
        common = _common(one, other)
        alike[one], alike[other] = max(alike[one], common), max(alike[other], common)
    least = len("r-") + NAME_MIN
    return {reason: name[: max(least, alike[name] + 1)] for reason, name in longest.items()}


def named(reasons: Iterable[str], name: str) -> list[str]:
    """Return the different reasons that a short name may mean, in order."""
    return sorted({reason for reason in reasons if is_named(reason, name)})


def _longest(reason: str) -> str:
    return f"r-{hashlib.sha256(reason.encode(errors='surrogatepass')).hexdigest()}"


def _common(one: str, other: str) -> int:
    return next((index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))
