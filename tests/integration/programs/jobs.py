"""What `lanelog worker jobs:client` runs in the tests: handlers that say what they do, one JSON line at a time.

Payload (JSON object): `wait` until the file of this name exists, `exit` the process dies here.
"""

import json
import os
import signal
import threading
from pathlib import Path

import lanelog

client = lanelog.connect()


def say(event: str, **fields: object) -> None:
    os.write(1, (json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n").encode())


@client.subscriber("t", "g", workers=1, poll_interval=0.05)
def handle(message: lanelog.Message) -> None:
    what = message.json()
    fields = {"key": message.key, "offset": message.offset, "attempt": message.attempt}
    say("started", threads=sum(each.name.startswith("lanelog-worker-") for each in threading.enumerate()), **fields)
    if what.get("exit") and message.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while "wait" in what and not Path(what["wait"]).exists():
        threading.Event().wait(0.02)
    say("handled", **fields)


say("imported", parent=os.getppid())
