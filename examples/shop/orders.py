"""The tables of the shop, and its database: that of LANELOG_URL, so that rows and messages have one commit."""

from __future__ import annotations

import os

from sqlalchemy import ForeignKey, String, create_engine, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

engine = create_engine(make_url(os.environ["LANELOG_URL"]).set(drivername="mysql+pymysql"), pool_pre_ping=True)
Session = sessionmaker(engine)


class Base(DeclarativeBase):
    """All tables of the shop."""


class Order(Base):
    """What a customer has ordered."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int]
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(String(16), default="new")


class Invoice(Base):
    """What a customer was billed. No unique key keeps a second invoice of an order out: there is none to keep out."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    cents: Mapped[int]
