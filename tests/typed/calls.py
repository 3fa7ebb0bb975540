"""Calls as users write them; never run. The type checkers must refuse every line marked `# wrong`, and no other.

`tests/unit/project/test_typed.py` runs them.
"""

from datetime import UTC, datetime, timedelta
from typing import Unpack

import tenacity

import lanelog
from lanelog.options import Handler


def handle(message: lanelog.Message) -> None:
    """A handler."""
    message.extend(timedelta(minutes=5))
    raise lanelog.Retry(timedelta(seconds=5))


def answer(message: lanelog.Message) -> str:
    """A handler that returns something, which is ignored."""
    message.nack(timedelta(seconds=2), "not now")
    message.postpone(1.5)
    return message.key


async def coroutine(message: lanelog.Message) -> None:
    """No handler: nobody awaits it."""


def without_message() -> None:
    """No handler: it takes no argument."""


def with_two(message: lanelog.Message, session: object) -> None:
    """No handler: it needs two arguments."""


def timed(message: lanelog.Message, call_next: Handler) -> object:
    """A middleware."""
    return call_next(message)


def told(message: lanelog.Message, error: str) -> None:
    """A hook for dead letters."""


def consume(client: lanelog.Client, **options: Unpack[lanelog.SubscriptionOptions]) -> lanelog.Subscription:
    """What an application writes that hands options on."""
    return client.subscribe("orders", "billing", handle, **options)


def right_calls() -> None:
    """Every kind of option in every form that is allowed."""
    hour = timedelta(hours=1)
    client: lanelog.Client = lanelog.connect()
    lanelog.connect("mysql://u@h/d", pool_size=4, publish_timeout=hour, read_timeout=5, driver="mysqlclient")
    client.publish("orders", "ann", b"", delay=hour, ttl=2 * hour)
    client.publish("orders", "ann", b"", delay=60, ttl=90.5)
    client.publish_many("orders", [("ann", {"n": 1}), lanelog.Outgoing("bob", b"", delay=hour, ttl=3)])
    client.schedule("nightly", "0 2 * * *", "jobs", "report", b"", ttl=hour)
    client.admin.redrive("orders", "billing", all=True, delay=hour, dry_run=False)
    subscription: lanelog.Subscription = client.subscribe("orders", "billing", handle)
    subscription.stop(timedelta(seconds=3))
    with client.subscribe(["orders", "refunds"], "billing", answer, workers=16, order="serial", retry=5) as running:
        running.pause()
    client.subscribe("orders", "billing", print, order=lanelog.Order.STRICT, ack_policy=lanelog.AckPolicy.MANUAL)
    client.subscribe("orders", "billing", lambda message: message.key, ack_policy="ack_first", start="latest")
    client.subscribe("orders", "billing", handle, retry=lanelog.RetryPolicy(max_attempts=3), max_deliveries=None)
    patience = lanelog.RetryPolicy(stop=tenacity.stop_after_delay(hour), wait=tenacity.wait_fixed(1))
    client.subscribe("orders", "billing", handle, retry=patience, start=datetime.now(UTC), retention=2 * hour)
    client.subscribe("orders", "billing", handle, middleware=(timed,), on_dead_letter=told)
    client.subscribe(
        "orders", "billing", handle, middleware=[timed], dead_letter_retention=None, dead_letter_suffix=None
    )
    for message in client.deliveries("orders", "scripts", timeout=hour, visibility_timeout=hour):
        message.ack()
    for message in client.deliveries("orders", "scripts", timeout=None, prefetch=10):
        message.reject("unreadable")
    consume(client, workers=2)
    client.close(hour)


def right_decorators(client: lanelog.Client) -> None:
    """A decorated handler keeps its type."""

    @client.subscriber("orders", "billing", workers=4, lease_duration=timedelta(seconds=30))
    def bill(message: lanelog.Message) -> int:
        return message.offset

    def call(message: lanelog.Message) -> int:
        return bill(message)

    client.subscribe("orders", "audit", call)


def wrong_options(client: lanelog.Client) -> None:
    """Misspelt, of another type, or a word that means nothing."""
    lanelog.connect("mysql://u@h/d", poolsize=4)  # wrong
    lanelog.connect("mysql://u@h/d", pool_size="4")  # wrong
    lanelog.connect("mysql://u@h/d", driver="asyncmy")  # wrong
    lanelog.connect("mysql://u@h/d", publish_timeout="30s")  # wrong
    client.subscribe("orders", "billing", handle, worker=16)  # wrong
    client.subscribe("orders", "billing", handle, workers="16")  # wrong
    client.subscribe("orders", "billing", handle, order="fifo")  # wrong
    client.subscribe("orders", "billing", handle, ack_policy="never")  # wrong
    client.subscribe("orders", "billing", handle, start="now")  # wrong
    client.subscribe("orders", "billing", handle, retry="5")  # wrong
    client.subscribe("orders", "billing", handle, retry=timedelta(seconds=5))  # wrong
    client.subscribe("orders", "billing", handle, middleware=timed)  # wrong
    client.subscribe("orders", "billing", handle, middleware=(handle,))  # wrong
    client.subscribe("orders", "billing", handle, on_dead_letter=handle)  # wrong
    client.subscriber("orders", "billing", retention="5m")(handle)  # wrong
    client.deliveries("orders", "scripts", visibility_timeouts=60)  # wrong
    client.deliveries("orders", "scripts", timeout="60")  # wrong
    client.publish("orders", "ann", b"", delay="60")  # wrong
    consume(client, worker=2)  # wrong


def wrong_handlers(client: lanelog.Client) -> None:
    """What would run nothing, or fail for each message."""
    client.subscribe("orders", "billing", coroutine)  # wrong
    client.subscribe("orders", "billing", without_message)  # wrong
    client.subscribe("orders", "billing", with_two)  # wrong
    client.subscriber("orders", "billing")(without_message)  # wrong
    with client.subscribe("orders", "billing", coroutine):  # wrong
        pass

    @client.subscriber("orders", "billing")  # wrong
    def bill(message: lanelog.Message, session: object) -> None:
        """Needs two arguments."""

    @client.subscriber("orders", "billing")
    async def mail(message: lanelog.Message) -> None:
        """The decorator alone cannot be refused; what it returns is no handler, and the import raises."""

    client.subscribe("orders", "audit", mail)  # wrong
    assert bill
