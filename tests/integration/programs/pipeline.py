"""A worker process of a pipeline: build, merge, notify, each publishing for the next in its effect's transaction."""

import random
import threading

import tenacity
from saying import CONFIG, listen, say, say_what_is_logged

import lanelog

STAGES = {"build": "merge", "merge": "notify", "notify": None}

listen()
say_what_is_logged()
chance = random.Random(CONFIG["seed"])
client = lanelog.connect(CONFIG["url"], pool_size=16)
retry = lanelog.RetryPolicy(stop=tenacity.stop_after_attempt(12), wait=tenacity.wait_fixed(0.05))


class Unlucky(Exception):
    """A failure at random: before, inside or after the effect."""


def luck(at: str) -> None:
    if chance.random() < 0.02:
        raise Unlucky(at)


def handle(message: lanelog.Message) -> None:
    luck("before")
    threading.Event().wait(0.002)
    with message.transaction() as connection:
        connection.cursor().execute(
            "INSERT INTO effects (stage, repository, number) VALUES (%s, %s, %s)",
            (message.topic, message.key, message.json()),
        )
        luck("inside")
        following = STAGES[message.topic]
        if following is not None:
            client.publish(following, message.key, message.payload, connection=connection)
        luck("at the end")


for stage in STAGES:
    client.subscriber(stage, f"{stage}ers", workers=4, retry=retry, name=CONFIG["name"])(handle)
client.start()
say("ready")
client.run()
say("drained", closed=client.close())
