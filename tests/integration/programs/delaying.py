"""A process that only publishes: messages with a delay to each key, whose time its own scheduler then waits for.

With `fork`, a child of it does the same once more while the parent's client is closed, and says when they are due.
"""

import os
import threading

from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog

listen()
say_what_is_logged()
client = lanelog.connect(CONFIG["url"])
say("ready")


def publish(name: str) -> None:
    client.publish_many("t", [lanelog.Outgoing(key, name, name, delay=CONFIG["delay"]) for key in CONFIG["keys"]])


publish(CONFIG["name"])
say("scheduled")
if CONFIG.get("fork"):
    child = os.fork()
    if not child:
        publish("child")
        # That which watches connections begins with the first of them, now or a moment later.
        names = {each.name for each in threading.enumerate()} - {"lanelog-packets"}
        threads = sorted(name for name in names if name.startswith("lanelog-"))
        while any(each.id == "child" for each in client.admin.scheduled("t")):
            threading.Event().wait(0.05)
        say("appended", threads=threads, closed=client.close())
        os._exit(0)
    client.close()
    say("forked", status=os.waitpid(child, 0)[1])
heard("end").wait()
client.close()
