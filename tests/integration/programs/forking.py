"""A process that forks, by multiprocessing, while its client publishes and consumes in other threads."""

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog

listen()
say_what_is_logged()
client = lanelog.connect(CONFIG["url"], driver=CONFIG["driver"])
handled: list[tuple[str, int, int]] = []


def handle(message: lanelog.Message) -> None:
    handled.append((message.key, message.offset, message.attempt))


def child(answers: Connection, subscription: lanelog.Subscription, number: int) -> None:
    refused = []
    for name, call in (
        ("start", subscription.start),
        ("pause", subscription.pause),
        ("resume", subscription.resume),
        ("stop", subscription.stop),
        ("stats", subscription.stats),
    ):
        try:
            call()
        except lanelog.ClosedError as error:
            refused.append((name, "fork" in str(error)))
    receipts = [client.publish("children", f"c{number}", {"n": n}).offset for n in range(5)]
    with client.transaction() as connection:
        receipts.append(client.publish("children", f"c{number}", b"in a transaction", connection=connection).offset)
    mine = []
    with client.subscribe("children", f"g{number}", lambda message: mine.append(message.key)) as own:
        until = time.monotonic() + 10
        while mine.count(f"c{number}") < 6 and time.monotonic() < until:
            threading.Event().wait(0.02)
        state = str(own.state)
    answers.send(
        {
            "refused": refused,
            "receipts": receipts,
            "own": mine.count(f"c{number}"),
            "state": state,
            "closed": client.close(),
        }
    )
    answers.close()


subscription = client.subscribe("t", "g", handle, workers=2)
over = threading.Event()
published = 0


def publish() -> None:
    global published  # noqa: PLW0603 - read after the join
    while not over.is_set():
        client.publish("t", "k", b"x")
        published += 1


publisher = threading.Thread(target=publish)
publisher.start()
forking = multiprocessing.get_context("fork")
say("ready")
for number in range(CONFIG["children"]):
    here, there = forking.Pipe()
    process = forking.Process(target=child, args=(there, subscription, number))
    process.start()
    there.close()
    if here.poll(30):
        say("child", number=number, **here.recv())
    process.join(10)
    say("joined", status=process.exitcode)
    here.close()
over.set()
publisher.join()
heard("finish").wait()
until = time.monotonic() + 10
while len(handled) < published and time.monotonic() < until:
    threading.Event().wait(0.02)
in_order = [offset for _, offset, _ in handled] == list(range(1, published + 1))
attempts = sorted({attempt for _, _, attempt in handled})
say(
    "parent",
    published=published,
    handled=len(handled),
    in_order=in_order,
    attempts=attempts,
    state=str(subscription.state),
)
say("closed", closed=client.close())
