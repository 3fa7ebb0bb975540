"""A small WSGI application with one client for the process, made and used before gunicorn forks (--preload)."""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import lanelog

client = lanelog.connect()
client.publish("web", "master", {"pid": os.getpid()})
seen: list[int] = []
master = os.getpid()
subscription = client.subscribe("web", "masters", lambda message: seen.append(message.offset))


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    answer: dict[str, Any] = {"pid": os.getpid(), "master": master}
    if environ["PATH_INFO"] == "/publish":
        receipt = client.publish("web", f"worker-{os.getpid()}", {"pid": os.getpid()})
        answer["offset"] = receipt.offset
    else:
        try:
            subscription.stop()
        except lanelog.ClosedError as error:
            answer["refused"] = str(error)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
