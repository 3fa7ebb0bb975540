"""A process that holds what it was handed: one subscription to each of `groups`, or one message of each pulled.

It says `started` for each message that it has, and `crowded` when so many (`count`) of a group are planned.
"""

import os
import threading

from saying import CONFIG, listen, say

import lanelog

listen()
client = lanelog.connect(CONFIG["url"])
forever = threading.Event()


def hold(message: lanelog.Message) -> None:
    say("started", group=message.group, key=message.key, attempt=message.attempt)
    if not CONFIG.get("pulled"):
        forever.wait()


subscriptions = []
for group in CONFIG["groups"]:
    if CONFIG.get("pulled"):
        deliveries = client.deliveries("t", group, timeout=None)
        hold(next(deliveries))
        subscriptions.append(deliveries.subscription)
    else:
        subscriptions.append(client.subscribe("t", group, hold, workers=CONFIG["workers"]))
while any(subscription.stats().running < CONFIG["count"] for subscription in subscriptions):
    forever.wait(0.02)
say("crowded", pid=os.getpid())
forever.wait()
