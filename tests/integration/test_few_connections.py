"""A server with too few connections: who gets one, and what is said."""

import logging
from contextlib import closing
from typing import Any

import pytest

import lanelog
from lanelog._database.pool import Database
from lanelog._database.precedence import ORDER
from lanelog.admin.read import topics
from lanelog.admin.read.ages import Breadth
from lanelog.errors import DatabaseError
from support.accounts import account
from support.sql import connect, one, rows
from support.waiting import events, eventually


def purposes(raw: Any, user: str) -> int:
    return int(one(raw, "SELECT COUNT(*) FROM information_schema.processlist WHERE user = %s", user))


@pytest.mark.thorough
@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("most", [3, 4])
def test_what_there_is_goes_to_the_loops_that_matter(
    lanelog_url: str, raw: Any, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    """With one for keeper, settler and fetcher each, messages are handled and acked; one ERROR says how many lack."""
    with lanelog.connect(lanelog_url) as other:
        other.publish_many("t", [("k", b"x")] * 3)
    with account(raw, lanelog_url, {"*": "ALL"}) as url:
        user = lanelog.config.ConnectConfig.from_url(url).user
        rows(raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {most}")
        with lanelog.connect(url, pool_size=2) as client:
            client.subscribe("t", "g", lambda _message: None)
            eventually(
                lambda: one(raw, "SELECT offset_acked FROM queue_offsets WHERE consumer_group = 'g'") == 3, within=20
            )
            (said,) = eventually(lambda: events(caplog, "connections.missing", logging.ERROR), within=20)
            lacking = {3: "[janitor,scheduler]", 4: "[scheduler]"}[most]
            assert f"missing={lacking.count(',') + 1}" in said
            assert f"of={len(ORDER)}" in said
            assert f"without={lacking}" in said
            with connect(lanelog_url) as late:
                rows(late, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS 20")
            eventually(lambda: purposes(raw, user) >= len(ORDER) - 1, within=20)
            assert len(events(caplog, "connections.missing", logging.ERROR)) == 1


def test_a_connection_that_nobody_uses_is_closed_for_any_loop(lanelog_url: str, raw: Any) -> None:
    """A loop that is worth less than publishing, refused once, gets the connection that lies idle in the pool."""
    with account(raw, lanelog_url, {"*": "ALL"}) as url:
        config = lanelog.config.ConnectConfig.from_url(url)
        rows(raw, f"ALTER USER '{config.user}'@'%' WITH MAX_USER_CONNECTIONS 2")
        with closing(Database(config)) as database, closing(database.session("keeper")) as keeper:
            with database.autocommit() as pooled:
                pooled.one("SELECT 1")
            keeper.ensure()
            with closing(database.session("janitor")) as janitor:
                with pytest.raises(DatabaseError, match="max_user_connections"):
                    janitor.ensure()
                eventually(lambda: purposes(raw, config.user) == 1)
                assert janitor.ensure()


@pytest.mark.thorough
@pytest.mark.parametrize("most", [1, 2])
def test_status_does_with_the_connections_there_are(lanelog_url: str, raw: Any, most: int) -> None:
    """Looks that are meant to be taken at once wait for each other."""
    with lanelog.connect(lanelog_url) as other:
        other.subscribe("t", "g", lambda _message: None).stop()
        other.publish_many("t", [(f"k{number}", b"x") for number in range(12)])
    with account(raw, lanelog_url, {"*": "ALL"}) as url:
        user = lanelog.config.ConnectConfig.from_url(url).user
        rows(raw, f"ALTER USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {most}")
        for pool_size in (2, 8):
            with lanelog.connect(url, pool_size=pool_size) as client:
                found = client.admin.status()
                assert (found.lag, found.oldest_age_exact, found.topics) == (12, True, 1)
                (group,) = topics.groups(client._database, "t", Breadth(candidates=2))
                assert (group.lag, group.oldest_age is None) == (12, False)
