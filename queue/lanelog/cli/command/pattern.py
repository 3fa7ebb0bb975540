"""Topics and groups given by pattern: `orders*`, `*-eu`, `shard-[0-9]`.

Owns what counts as a pattern, and what it finds. The name of an existing topic is never taken as a pattern.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from lanelog.admin import Admin, GroupInfo

_WILD: Final = re.compile(r"[*?\[]")
GROUPS_MAX: Final = 1000
"""The most groups to read, the first by topic and name."""
GROUPS_BOUNDED: Final = 9_999
"""The same limit when a bound is checked. `Admin.groups` lists at most one more."""
TOPICS_MAX: Final = 9_999
"""Topics that are read. `Admin.topic_names` lists at most one more."""


@frozen(kw_only=True)
class FoundTopics:
    """The topics that a name or pattern means."""

    topics: list[str] | None
    """None: all."""
    left_out: str = ""
    """A sentence without its end that says that there are more. Empty: there are not."""


@frozen(kw_only=True)
class FoundGroups:
    """The groups that names or patterns mean."""

    found: list[GroupInfo]
    left_out: str = ""
    """As that of `FoundTopics`."""


def groups_of(admin: Admin, topic: str | None, group: str | None = None, *, bounded: bool = False) -> FoundGroups:
    """Return the groups of the topics, by name or pattern. Raises ConfigurationError if nothing fits.

    A pattern that fits nothing is refused like an unknown name: a monitor with a spelling mistake must not stay silent.

    `bounded`: a bound must hold for all of them.
    """
    most = GROUPS_BOUNDED if bounded else GROUPS_MAX
    names = topics_of(admin, topic)
    found = _groups_of(admin, names.topics, group, most)
    if group is not None and not found and _WILD.search(group):
        found = _groups_of(admin, names.topics, None, most)
        more = len(found) > most
        chosen = [each for each in found[:most] if fnmatchcase(each.group, group)]
    else:
        more = len(found) > most
        chosen = found[:most]
    left_out = f"only the first {most:,} groups were read" if more else names.left_out
    if group is not None and not chosen:
        where = "is registered" if topic is None else f"is registered for topic {topic!r}"
        but = f", but {left_out}" if left_out else ""
        raise ConfigurationError(
            f"no group {group!r} {where}{but}: `lanelog groups {topic or ''}` lists those that are"
        )
    return FoundGroups(found=chosen, left_out=left_out)


def _groups_of(admin: Admin, topics: list[str] | None, group: str | None, most: int) -> list[GroupInfo]:
    """Return the first groups, one more than `most` if there are more."""
    found: list[GroupInfo] = []
    for name in (None,) if topics is None else topics:
        if len(found) > most:
            break
        found += admin.groups(name, group, limit=most + 1 - len(found))
    return found


def topics_of(admin: Admin, topic: str | None) -> FoundTopics:
    """Return the topics that a name or pattern means."""
    if topic is None:
        return FoundTopics(topics=None)
    wild = _WILD.search(topic)
    if wild is None:
        return FoundTopics(topics=[topic])
    there = admin.topic_names(topic[: wild.start()], limit=TOPICS_MAX + 1)
    if topic in there:
        return FoundTopics(topics=[topic])
    left_out = f"only the first {TOPICS_MAX:,} topics were read" if len(there) > TOPICS_MAX else ""
    found = [name for name in there[:TOPICS_MAX] if fnmatchcase(name, topic)]
    if not found:
        but = f", but {left_out}" if left_out else ""
        raise ConfigurationError(f"no topic fits {topic!r}{but}: `lanelog topics` lists those there are")
    return FoundTopics(topics=found, left_out=left_out)
