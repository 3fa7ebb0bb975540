"""Bills orders: the invoice, the order's new state and the ack are one commit, so each order has one invoice."""

from __future__ import annotations

import lanelog
from lanelog.contrib.sqlalchemy import session
from shop.orders import Invoice, Order, Session

client = lanelog.connect()  # the database of LANELOG_URL; nothing is sent yet


@client.subscriber("orders", "invoices", workers=4)
def bill(message: lanelog.Message) -> None:
    """Bill an order. If the process dies before the commit, nothing has happened, and the message comes again."""
    with session(message, Session) as database:
        order = database.get_one(Order, message.json()["order"], with_for_update=True)
        order.state = "billed"
        database.add(Invoice(order_id=order.id, cents=order.cents))
