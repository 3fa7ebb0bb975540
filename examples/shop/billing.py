"""Bills orders: one group, whose processes share the customers."""

from __future__ import annotations

import logging

import lanelog

client = lanelog.connect()  # the database of LANELOG_URL; nothing is sent yet
log = logging.getLogger(__name__)


@client.subscriber("orders", "billing", workers=8, retry=5)
def bill(message: lanelog.Message) -> None:
    """Bill an order. Orders of one customer, the key, come one after the other."""
    log.info("bill %s for %s", message.json()["order"], message.key)
