"""Ships orders: another group, which reads the same topic by itself."""

from __future__ import annotations

import logging

import lanelog

client = lanelog.connect()  # the database of LANELOG_URL; nothing is sent yet
log = logging.getLogger(__name__)


@client.subscriber("orders", "shipping", workers=4, retry=5)
def ship(message: lanelog.Message) -> None:
    """Ship an order. It may have been billed before or not: the groups do not wait for each other."""
    log.info("ship %s to %s", message.json()["order"], message.key)
