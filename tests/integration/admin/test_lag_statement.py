"""`lanelog lag TOPIC GROUP --sql`: one statement, whose one number any client of SQL can read."""

from typing import Any

import pytest

from lanelog import Client
from lanelog._base.places import GroupTopic
from lanelog.admin import Admin
from lanelog.admin.read.lag_statement import lag_statement
from support.cli import Command
from support.situations import Situations
from support.sql import one, rows
from support.waiting import accept


def test_its_number_is_the_lag_of_the_group(made: Situations, admin: Admin, command: Command, raw: Any) -> None:
    """Without what is settled ahead, and for a group that has no row for a lane yet."""
    made.fill("k", 10)
    made.fill("untouched", 4)
    made.place("k", 3)
    made.row("k", 5, through=7, acked=1)
    made.row("k", 9, acked=1)
    made.row("k", 4)
    (group,) = admin.lag("t")
    printed = command("lag", "t", "g", "--sql").stdout
    assert (one(raw, printed), group.lag) == (1 + 4 + 3, 1 + 4 + 3)
    assert (
        command.json("lag", "t", "g", "--sql")["sql"]
        == printed.strip()
        == lag_statement(GroupTopic(topic="t", group="g"))
    )
    rows(raw, "UPDATE queue_offsets SET offset_acked = 10 WHERE consumer_group = 'g' AND partition_key = 'k'")
    assert one(raw, printed) == 1 + 4


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"])
def test_any_name_means_itself_under_any_sql_mode(lanelog_client: Client, raw: Any, mode: str) -> None:
    """A quote, a backslash or a percent sign in a name neither ends the text nor changes it."""
    rows(raw, f"SET SESSION sql_mode = '{mode}'")
    for name in ("it's", 'back\\slash "quoted"', "100 %s", "naïve ✓"):
        lanelog_client.subscribe(name, name, accept).stop()
        lanelog_client.publish_many(name, [("k", b"1"), ("l", b"2")])
        with raw.cursor() as cursor:
            cursor.execute(lag_statement(GroupTopic(topic=name, group=name)))
            assert cursor.fetchall() == ((2,),)


def test_it_is_for_one_group(made: Situations, command: Command) -> None:
    """The group must exist: an autoscaler with a spelling mistake would see no lag for ever."""
    made.register("h")
    assert command.refused("lag", "t", "--sql").startswith("--sql is for one group: name TOPIC and GROUP")
    assert "no group 'i' is registered" in command.refused("lag", "t", "i", "--sql")
