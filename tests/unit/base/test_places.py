"""The names of a place: topic and group cannot change places unseen."""

from typing import Any

import pytest

from lanelog._base.places import GroupTopic, LaneId


@pytest.mark.parametrize("kind", [GroupTopic, LaneId])
def test_names_are_given_by_name_only(kind: Any) -> None:
    """Two strings in the wrong order would name another place; without their names they are refused."""
    with pytest.raises(TypeError):
        kind(*["t", "g", "k"][: 2 if kind is GroupTopic else 3])


def test_a_lane_is_of_its_group_and_topic() -> None:
    """A lane of a group keeps both names, and columns come in the order of the primary keys."""
    at = GroupTopic(topic="t", group="g")
    assert (at.columns, at.lane("k")) == (("g", "t"), LaneId(topic="t", group="g", key="k"))
    assert (at.lane("k").of, at.lane("k").columns) == (at, ("g", "t", "k"))
