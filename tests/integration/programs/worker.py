"""A worker process: one subscription, whose messages say in their payload what their handler is to do.

Payload (JSON object): `sleep` seconds, `hold` the interpreter for seconds, `exit` the process dies here, `wait` for a
word of the test, `how` it is settled after that: `ack`, `nack`, `reject` or `transaction`.
"""

import ctypes
import os
import threading
import time

import tenacity
from saying import CONFIG, heard, listen, say, say_what_is_logged

import lanelog

listen()
say_what_is_logged()

options = dict(CONFIG.get("options", {}))
if "attempts" in CONFIG:
    options["retry"] = lanelog.RetryPolicy(
        stop=tenacity.stop_after_attempt(CONFIG["attempts"]), wait=tenacity.wait_fixed(0.05)
    )
client = lanelog.connect(CONFIG["url"], **CONFIG.get("connect", {}))


def handle(message: lanelog.Message) -> None:
    what = message.json() or {}
    fields = {
        "key": message.key,
        "offset": message.offset,
        "attempt": message.attempt,
        "token": message.fencing_token,
        "id": message.id,
        "pid": os.getpid(),
    }
    seconds = what.get("sleep", CONFIG.get("sleep", 0))
    if CONFIG.get("starts") or len(what) > 1 or seconds:
        say("started", **fields)
    if what.get("exit"):
        os._exit(9)
    if what.get("hold"):
        ctypes.PyDLL(None).sleep(what["hold"])  # no other thread of this process runs meanwhile
    if seconds:
        threading.Event().wait(seconds)
    try:
        settle(message, what, fields)
    except lanelog.LeaseLost as error:
        say("lost", how=what.get("how"), error=str(error), **fields)
        return
    say("handled", **fields)


def settle(message: lanelog.Message, what: dict[str, object], fields: dict[str, object]) -> None:
    if what.get("how") == "transaction":
        with message.transaction() as connection:
            connection.cursor().execute(
                "INSERT INTO effects (topic, k, o, who) VALUES (%s, %s, %s, %s)",
                (message.topic, message.key, message.offset, CONFIG["name"]),
            )
            wait(what, fields)
        return
    wait(what, fields)
    if what.get("how") == "ack":
        message.ack()
    elif what.get("how") == "nack":
        message.nack(reason="not now")
    elif what.get("how") == "reject":
        message.reject("bad payload")


def wait(what: dict[str, object], fields: dict[str, object]) -> None:
    if what.get("wait") == CONFIG["name"]:
        say("waiting", **fields)
        heard("go").wait()


client.subscriber(CONFIG.get("topic", "t"), CONFIG.get("group", "g"), **{"name": CONFIG["name"], **options})(handle)
client.start()
say("ready", pid=os.getpid(), clock=time.time(), code=lanelog.__file__)
client.run(**CONFIG.get("run", {}))  # the version before knows no options
say("drained", closed=client.close())
