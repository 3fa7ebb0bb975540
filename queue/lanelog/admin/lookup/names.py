"""What there is, by name: topics and groups, and how a wrong name is answered.

Owns these two queries and that half-sentence; never refuses anything (`known` does). Called by the rooms of this
package.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

LAST = "\U0010ffff"
"""The last character there is: a name that begins with some text is not behind that text and this."""

SHOWN = 5

# The names of topics in a range, and whether they hold dead letters (PRIMARY).
NAMES = """
SELECT topic, holds_dead_letters FROM queue_partitions FORCE INDEX (PRIMARY)
WHERE topic >= %s AND topic <= %s AND partition_key = ''
"""

# Which groups are registered for the topics in a range (by_topic).
READERS = """
SELECT topic, consumer_group FROM queue_groups FORCE INDEX (by_topic)
WHERE topic >= %s AND topic <= %s ORDER BY topic, consumer_group
"""


def names(cx: Executor, beginning: str = "") -> list[tuple[str, bool]]:
    """Topics whose name begins so, and whether they hold dead letters."""
    return [(name, bool(holds)) for name, holds in cx.query(NAMES, (beginning, beginning + LAST))]


def readers(cx: Executor, topic: str | None = None) -> dict[str, list[str]]:
    """The groups of one topic, or of every topic that has any, in order of their names."""
    found: dict[str, list[str]] = {}
    for name, group in cx.query(READERS, ("", LAST) if topic is None else (topic, topic)):
        found.setdefault(name, []).append(group)
    return found


def hint(wrong: str, there: Sequence[str]) -> str:
    """What somebody who gave a wrong name may have meant."""
    close = difflib.get_close_matches(wrong, there, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not there:
        return "there is none"
    more = ", …" if len(there) > SHOWN else ""
    return f"there are {', '.join(map(repr, there[:SHOWN]))}{more}"
