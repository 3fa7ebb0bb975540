"""A process in which handlers hang: a limited subscription, another one of a second client, and one that is pulled.

Payload (JSON object): `hang` what the handler of the limited subscription does for ever, `wait` in the interpreter or
`transaction` with an open one; `ack`: before that, it acks. Without either it returns.
"""

import logging
import os
import threading

from saying import CONFIG, listen, say, say_what_is_logged

import lanelog
from lanelog._process import own_end

listen()
say_what_is_logged()


def hang(what: str) -> None:
    """The innermost frame of this program."""
    say("hangs", what=what)
    threading.Event().wait()


def handle(message: lanelog.Message) -> None:
    what = message.json() or {}
    say("started", key=message.key, offset=message.offset, attempt=message.attempt, group=message.group)
    if what.get("ack"):
        message.ack()
    if what.get("hang") == "transaction":
        with message.transaction() as connection:
            connection.cursor().execute("INSERT INTO effects VALUES ('half done')")
            hang("transaction")
    elif what.get("hang"):
        hang("wait")


class Stuck(logging.Handler):
    """A log whose disk stands still."""

    def emit(self, record: logging.LogRecord) -> None:
        del record
        threading.Event().wait()


connect = {"read_timeout": 60.0, **CONFIG.get("connect", {})}
client = lanelog.connect(CONFIG["url"], **connect)
client.subscriber("t", "g", **{"name": CONFIG["name"], **CONFIG.get("options", {})})(handle)
client.start()
if "beside" in CONFIG:
    other = lanelog.connect(CONFIG["url"], **connect)
    other.subscribe("t", "beside", handle, **CONFIG["beside"])
    pulled = other.deliveries("t", "pulled")
    pulled.__enter__()
    held = next(pulled)
    say("started", key=held.key, offset=held.offset, attempt=held.attempt, group="pulled")
if CONFIG.get("log stands still"):
    own_end.LOGS = CONFIG["log stands still"]
    logging.getLogger("lanelog").addHandler(Stuck(logging.ERROR))
say("ready", pid=os.getpid())
client.run()
say("drained")
