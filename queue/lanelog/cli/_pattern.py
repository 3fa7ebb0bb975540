"""Topics and groups given by pattern: `orders*`, `*-eu`, `shard-[0-9]`.

Owns what counts as a pattern, and what it finds. The name of an existing topic is never taken as a pattern.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from lanelog.admin import Admin, GroupInfo

_WILD: Final = re.compile(r"[*?\[]")
_TOPICS_MAX: Final = 10_000


def groups_of(admin: Admin, topic: str | None, group: str | None = None) -> list[GroupInfo]:
    """Return the groups of the topics, by name or pattern. Raises ConfigurationError if nothing fits.

    A pattern that fits nothing is refused like an unknown name: a monitor with a spelling mistake must not stay silent.
    """
    topics = topics_of(admin, topic)
    found = admin.groups() if topics is None else [each for name in topics for each in admin.groups(name)]
    chosen = [each for each in found if group is None or each.group == group]
    if group is not None and not chosen and _WILD.search(group):
        chosen = [each for each in found if fnmatchcase(each.group, group)]
    if group is not None and not chosen:
        where = "is registered" if topic is None else f"is registered for topic {topic!r}"
        raise ConfigurationError(f"no group {group!r} {where}: `lanelog groups {topic or ''}` lists those that are")
    return chosen


def topics_of(admin: Admin, topic: str | None) -> list[str] | None:
    """Return the topics that a name or pattern means. None: all."""
    if topic is None:
        return None
    wild = _WILD.search(topic)
    if wild is None:
        return [topic]
    there = admin.topic_names(topic[: wild.start()], limit=_TOPICS_MAX)
    found = [topic] if topic in there else [name for name in there if fnmatchcase(name, topic)]
    if not found:
        raise ConfigurationError(f"no topic fits {topic!r}: `lanelog topics` lists those there are")
    return found
