"""A shop with FastAPI and SQLAlchemy: an order and its message are one commit, and each order is billed exactly once.

`POST /orders` stores an order and publishes it in the same commit, with the customer as the key. `shop.invoices` bills
the orders of a customer one after the other, and `GET /orders/{number}` shows whether that has happened.

Install lanelog with its extra `cli`, and fastapi, sqlalchemy and uvicorn. Set LANELOG_URL, go to `examples`, and run:

    lanelog migrate                         # makes lanelog's tables
    uvicorn shop.web:app                    # makes the shop's tables, and takes orders
    lanelog worker shop.invoices:client     # in another terminal: bills them
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, PositiveInt

import lanelog
from lanelog.contrib.sqlalchemy import publish
from shop.orders import Base, Order, Session, engine

client = lanelog.connect()  # the database of LANELOG_URL; nothing is sent yet


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Make the shop's tables at the start, and close the connections at the end."""
    await asyncio.to_thread(Base.metadata.create_all, engine)
    yield
    await asyncio.to_thread(client.close)
    engine.dispose()


app = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    """The body of a request."""

    customer: PositiveInt
    cents: PositiveInt


@app.post("/orders", status_code=201)
def create(new: NewOrder) -> dict[str, int]:
    """Store an order and publish it: both happen at the end of the block, or neither."""
    with Session.begin() as session:
        order = Order(customer=new.customer, cents=new.cents)
        session.add(order)
        session.flush()  # the database gives the order its number
        publish(session, client, "orders", f"customer-{order.customer}", {"order": order.id})
        return {"id": order.id}


@app.get("/orders/{number}")
def show(number: int) -> dict[str, int | str]:
    """Show an order and its state: new, or billed."""
    with Session() as session:
        order = session.get(Order, number)
        if order is None:
            raise HTTPException(404)
        return {"id": order.id, "customer": order.customer, "cents": order.cents, "state": order.state}
