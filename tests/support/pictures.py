"""The pictures in `docs/operations/pictures`: run it as `python -m support.pictures` in `tests/`, with Chromium there.

Half a minute of a shop whose payments are slow, with an hour of history, a group that is paused, and dead letters.
"""

import os
import random
import threading
import time
from pathlib import Path

import lanelog
from lanelog import devserver
from lanelog.dashboard import WebPace
from lanelog.dashboard.app import ENVIRONMENT
from support.browser import Page, browser
from support.dashboards import served
from support.sql import connect, rows
from support.waiting import eventually

PICTURES = Path(__file__).parents[2] / "docs/operations/pictures"
SECONDS = 40
"""How long it samples."""
SAMPLE = 1.0
CUSTOMERS = 20
RATE = 16
"""Orders a second."""
MINUTES = 58
"""Of history."""
A_MINUTE = 120
"""Messages that each of them has."""


def pay(message: lanelog.Message) -> None:
    """Take some milliseconds. One customer's bank does not answer; one order is wrong."""
    if message.key == "customer-7":
        raise lanelog.Retry(delay=600)
    if message.payload == b"wrong":
        raise lanelog.Reject("no such article")
    time.sleep(random.lognormvariate(-3.4, 0.8))  # the times of handlers that the chart shows


def age(url: str) -> None:
    """Give the group a history, in which handlers became slow for a while, and let all that waits be older."""
    with connect(url) as connection:
        (now,) = rows(connection, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000")[0]
        values = []
        for minute in range(MINUTES):
            slow = 3 if 20 < minute < 32 else 1
            for number in range(A_MINUTE):
                ended = now - minute * 60_000 - number * (60_000 // A_MINUTE)
                took = int(slow * random.lognormvariate(3.5, 0.8))
                values.append((f"old-{number}", minute, ended - took, ended))
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO queue_history (consumer_group, topic, partition_key, message_offset, id, outcome,"
                " attempts, first_delivered_at, finished_at) VALUES ('billing', 'orders', %s, %s, 'x', 'success', 1,"
                " %s, %s)",
                values,
            )
        rows(connection, "UPDATE queue_messages SET created_at = created_at - 300000 WHERE topic <> 'orders'")


def publish(client: lanelog.Client, stop: threading.Event) -> None:
    """Publish orders, in waves."""
    began = time.monotonic()
    while not stop.wait(random.expovariate(RATE * (1.5 if (time.monotonic() - began) % 20 < 8 else 0.6))):
        client.publish("orders", f"customer-{random.randrange(CUSTOMERS)}", {"total": random.randrange(100)})


def take(page: Page, address: str) -> None:
    """Take the pictures."""
    page.show_as(width=1400)
    page.visit(address)
    time.sleep(SECONDS)  # the curves show what passes meanwhile
    for name, where, width, height, dark in (
        ("dashboard", "?still=1", 1400, 800, False),
        ("charts", "charts?topic=orders&group=billing", 1400, 1010, False),
        ("dashboard-narrow", "?still=1", 400, 800, True),
    ):
        page.show_as(width=width, height=height, dark=dark)
        page.visit(address + where)
        (PICTURES / f"{name}.png").write_bytes(page.picture())


def main() -> None:
    """Stage the shop, and take the pictures."""
    os.environ[ENVIRONMENT] = "production"
    random.seed(7)
    stop = threading.Event()
    with devserver.start("local") as server:
        url = server.create_database("shop")
        with lanelog.connect(url) as client:
            client.migrate()
            client.subscribe("labels", "printing", pay).stop()
            client.publish_many("labels", [(f"customer-{number}", b"label") for number in range(12)])
            client.admin.acting("ann", "the printer is out of paper").pause("labels", "printing")
            client.publish("orders", "customer-7", b"{}")
            client.publish_many("orders", [("customer-3", b"wrong")] * 3)
            with client.subscribe("orders", "billing", pay, history=True, workers=4) as subscription:
                eventually(lambda: subscription.stats().dead_lettered == 3)
                age(url)
                publisher = threading.Thread(target=publish, args=(client, stop))
                publisher.start()
                try:
                    with served(client, WebPace(sample=SAMPLE)) as address, browser() as page:
                        take(page, address)
                finally:
                    stop.set()
                    publisher.join()


if __name__ == "__main__":
    main()
