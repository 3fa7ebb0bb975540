"""Names in the log, as values: a group of a topic, and one lane of it.

Fields are given by name only, so that topic and group, two strings, cannot be mixed up.
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class GroupTopic:
    """A consumer group of a topic."""

    topic: str
    group: str

    @classmethod
    def reserved(cls, topic: str) -> GroupTopic:
        """The reserved group '' of a topic. It has the rows of floors and of settled dead letters."""
        return cls(topic=topic, group="")

    @property
    def columns(self) -> tuple[str, str]:
        """The first columns of primary keys: consumer_group, topic."""
        return self.group, self.topic

    def lane(self, key: str) -> LaneId:
        """One lane of this topic, for this group."""
        return LaneId(topic=self.topic, group=self.group, key=key)


@frozen(kw_only=True)
class LaneId:
    """A lane of a topic, for a consumer group."""

    topic: str
    group: str
    key: str

    @property
    def of(self) -> GroupTopic:
        """The group and its topic."""
        return GroupTopic(topic=self.topic, group=self.group)

    @property
    def columns(self) -> tuple[str, str, str]:
        """The first columns of primary keys: consumer_group, topic, partition_key."""
        return self.group, self.topic, self.key
