"""Secrets for tests, and where to look for them: exceptions as different tools show them, and an account's URL."""

import io
import secrets
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import structlog

from lanelog.config import ConnectConfig
from support.sql import rows

PASSWORD = "pW0rd-ü'%\\" + "s3cr3t" * 20
"""Longer than what tools that show locals cut strings to, and with characters that are escaped on the way."""
PAYLOAD = b"pAyl0ad-n0b0dys-business"
METADATA = {"authorization": "m3tadata-n0b0dys-business"}

PARTS = ("pW0rd", "s3cr3t")
CONTENTS = ("n0b0dys-business",)


def found_in(text: str, *what: str) -> list[str]:
    """The lines of a text in which something stands that must not."""
    return [line[:300] for line in text.splitlines() for each in what if each in line]


def rendered(error: BaseException, *, by_rich: bool = True) -> str:
    """An exception as applications show it: plain, and with the locals of every frame by several tools."""
    info = (type(error), error, error.__traceback__)
    texts = ["".join(traceback.format_exception(error)), repr(error), repr(error.args), repr(vars(error))]
    texts += traceback.TracebackException(*info, capture_locals=True).format()
    for use_rich in (True, False):
        for longest in (80, 100_000):
            transform = structlog.tracebacks.ExceptionDictTransformer(
                show_locals=True, locals_max_string=longest, use_rich=use_rich
            )
            texts.append(repr(transform(info)))
    if by_rich:  # a second each
        output = io.StringIO()
        structlog.dev.RichTracebackFormatter(show_locals=True, width=200, color_system=None)(output, info)
        texts.append(output.getvalue())
    return "\n".join(texts)


@contextmanager
def secret_account(raw: Any, url: str) -> Iterator[str]:
    """A user with that password, for as long as the block lasts; its URL."""
    config = ConnectConfig.from_url(url)
    name = f"secret_{secrets.token_hex(4)}"
    rows(raw, f"CREATE USER '{name}'@'%%' IDENTIFIED BY %s", PASSWORD)
    rows(raw, f"GRANT ALL ON `{config.database}`.* TO '{name}'@'%'")
    try:
        yield url_of(config, name)
    finally:
        rows(raw, f"DROP USER '{name}'@'%'")


def url_of(config: ConnectConfig, user: str, port: int = 0, **parameters: str) -> str:
    if config.unix_socket and not port:
        parameters["unix_socket"] = config.unix_socket
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    where = f"127.0.0.1:{port}" if port else f"{config.host}:{config.port}"
    return f"mysql://{user}:{quote(PASSWORD, safe='')}@{where}/{config.database}{f'?{query}' if query else ''}"


def error_of(call: Callable[[], object]) -> BaseException:
    """What a call raises."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    raise AssertionError("it raised nothing")
