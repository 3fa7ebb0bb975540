"""The names of a place in the log, as values: a group of a topic, and one lane of it.

Owns nothing but the names. Fields are given by name only: topic and group, two strings, cannot change places unseen.
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
        """The reserved group '' of a topic: the floors and the settled dead letters have their rows there."""
        return cls(topic=topic, group="")

    @property
    def columns(self) -> tuple[str, str]:
        """The names as primary keys begin: consumer_group, topic."""
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
        """The names as primary keys begin: consumer_group, topic, partition_key."""
        return self.group, self.topic, self.key
