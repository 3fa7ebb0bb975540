"""What the programs of the tests share: saying what they do, and listening to the test."""

import json
import logging
import os
import sys
import threading
import time
from typing import Any

CONFIG: dict[str, Any] = json.loads(sys.argv[1])
HEARD: dict[str, threading.Event] = {}
_lock = threading.Lock()


def say(event: str, **fields: object) -> None:
    """One line, in one piece, that not even SIGKILL can take back."""
    os.write(1, (json.dumps({"event": event, "said": time.monotonic(), **fields}) + "\n").encode())


def heard(word: str) -> threading.Event:
    """Set when the test has said this word."""
    with _lock:
        return HEARD.setdefault(word, threading.Event())


def listen() -> None:
    """Hear the test out, in a thread of its own."""

    def hear() -> None:
        with os.fdopen(os.dup(0)) as test:  # not sys.stdin, whose lock a forked child would find held
            for line in test:
                heard(line.strip()).set()

    threading.Thread(target=hear, name="listens", daemon=True).start()


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say("log", level=record.levelname, text=record.getMessage())


def say_what_is_logged() -> None:
    """Pass the library's warnings and errors on to the test."""
    logger = logging.getLogger("lanelog")
    logger.addHandler(_Saying(logging.WARNING))
    logger.setLevel(logging.INFO)
