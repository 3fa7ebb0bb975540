"""A minute of a schedule that fires every second, by five processes whose clocks are hours apart."""

from __future__ import annotations

from lanelog import Client
from support.processes import Fleet
from support.ticking import every_second

SECONDS = 60


def test_a_minute_has_sixty_messages(lanelog_url: str, lanelog_client: Client) -> None:
    """No duplicate, none missing, in order."""
    fleet = Fleet(lanelog_url)
    try:
        every_second(fleet, lanelog_client, SECONDS)
    finally:
        fleet.close()
