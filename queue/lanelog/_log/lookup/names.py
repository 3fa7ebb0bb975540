"""The names of topics and groups, and the hint that answers a wrong name.

Owns two queries, the hint, and which dead letter topic belongs to which topic. Never refuses a name (`known` does).
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanelog._database import Executor

LAST = "\U0010ffff"
"""The last character of Unicode: every name that begins with a text is at or before that text followed by this."""

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
    """Return the topics whose name begins with `beginning`, and whether they hold dead letters."""
    return [(name, bool(holds)) for name, holds in cx.query(NAMES, (beginning, beginning + LAST))]


def readers(cx: Executor, topic: str | None = None) -> dict[str, list[str]]:
    """Return the groups of one topic, or of every topic that has any, in order of their names."""
    found: dict[str, list[str]] = {}
    for name, group in cx.query(READERS, ("", LAST) if topic is None else (topic, topic)):
        found.setdefault(name, []).append(group)
    return found


def hint(wrong: str, there: Sequence[str]) -> str:
    """Suggest the name that was meant, or say which names exist."""
    close = difflib.get_close_matches(wrong, there, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not there:
        return "there is none"
    more = ", …" if len(there) > SHOWN else ""
    return f"there are {', '.join(map(repr, there[:SHOWN]))}{more}"


def dead_letter_topics(topics: Sequence[str], names: Sequence[tuple[str, bool]]) -> dict[str, tuple[str, ...]]:
    """Return the dead letter topics of each of `topics`, in order.

    `names` are all topics, and whether they hold dead letters.

    A dead letter topic's name is its topic's name and a suffix. It belongs to the longest name that it begins with:
    those of `merge_fast` are not `merge`'s.
    """
    found: dict[str, list[str]] = {topic: [] for topic in topics}
    plain = sorted(name for name, holds in names if not holds)
    for name, holds in names:
        if holds:
            # In the sorted list, the names that this one begins with stand before it, the longest last. Other names
            # may stand between them.
            at = bisect_right(plain, name)
            while at and not name.startswith(plain[at - 1]):
                at -= 1
            if at and plain[at - 1] in found:
                found[plain[at - 1]].append(name)
    return {topic: tuple(sorted(letters)) for topic, letters in found.items()}
