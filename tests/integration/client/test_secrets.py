"""Passwords, payloads and metadata: in no log, traceback, repr, warning or output, however things go wrong.

Applications render tracebacks in their own way: with the locals of every frame, by structlog, rich or the standard
library. The library's frames show no password there either.
"""

import gc
import logging
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from rich.pretty import pretty_repr

import lanelog
from lanelog import Client, LanelogError, Outgoing
from lanelog._database.connection.login import Secret, SecretText
from lanelog.config import ConnectConfig
from support.proxy import listening, proxy_to
from support.secrecy import CONTENTS, METADATA, PARTS, PASSWORD, PAYLOAD, error_of, found_in, rendered, url_of
from support.sql import rows, running
from support.waiting import Gate, Record, accept, eventually

THOROUGH = pytest.mark.thorough


class Everything(logging.Handler):
    """Keeps every record of every logger: the line as a formatter writes it, and the exception with its frames."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.plain: list[str] = []
        self.errors: dict[str, list[BaseException]] = {}

    @property
    def events(self) -> set[str]:
        """The first word of each record."""
        return {line.split(" ")[0].split("\n")[0] for line in list(self.plain)}

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the threads of the library: what takes time is done later."""
        self.plain.append(logging.Formatter().format(record))
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.setdefault(record.getMessage().split(" ")[0], []).append(record.exc_info[1])


@pytest.fixture
def log() -> Iterator[Everything]:
    """What all loggers of this process say at DEBUG."""
    root, everything = logging.getLogger(), Everything()
    before = root.level
    root.addHandler(everything)
    root.setLevel(logging.DEBUG)
    yield everything
    root.setLevel(before)
    root.removeHandler(everything)
    assert found_in("\n".join(everything.plain), *PARTS, *CONTENTS) == []
    for errors in everything.errors.values():
        for error in errors[:2]:
            assert found_in(rendered(error, by_rich=False), *PARTS) == []


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how",
    ["tls", *(pytest.param(how, marks=THOROUGH) for how in ("password", "database", "port", "files", "cut", "packet"))],
)
def test_no_error_of_connecting_shows_a_password(lanelog_url: str, account: str, log: Everything, how: str) -> None:
    """Refused, unreachable, cut off: neither text nor chain nor the locals of any frame, the driver's included."""
    config = ConnectConfig.from_url(lanelog_url)
    user = account.removeprefix("mysql://").partition(":")[0]
    with proxy_to(lanelog_url) as proxy, listening(garbage) as port:
        wheres = {
            "password": url_of(config, "nobody_of_this_name"),
            "database": account.replace(f"/{config.database}", "/nowhere_of_this_name"),
            "port": url_of(config, user, port=1),
            "tls": url_of(config, user, ssl="true"),
            "files": url_of(config, user, ssl_ca="/nowhere/ca.pem"),
            "cut": url_of(config, user, port=proxy.port),
            "packet": url_of(config, user, port=port),
        }
        with lanelog.connect(wheres[how], publish_timeout=0.5, connect_timeout=2.0) as client:
            if how == "cut":
                client.ping()
                proxy.close()
            calls: dict[str, Callable[[], object]] = {
                "ping": client.ping,
                "publish": lambda: client.publish("t", "k", PAYLOAD),
                "subscribe": lambda: client.subscribe("t", "g", accept),
            }
            if how not in ("cut", "packet"):  # which it would repeat for a minute
                calls["migrate"] = client.migrate
            for name, call in calls.items():
                error = error_of(call)
                assert isinstance(error, LanelogError)
                assert found_in(rendered(error, by_rich=how == "password" and name == "ping"), *PARTS) == []


def garbage(connection: socket.socket) -> None:
    """Answer with a greeting that is none."""
    connection.sendall(b"\x0a\x00\x00\x00HTTP/1.1 400")


def test_a_password_on_its_way_stays_hidden() -> None:
    """The password that both drivers get is shown neither whole, nor cut, nor with text around it."""
    for secret in (Secret(PASSWORD.encode()), SecretText(PASSWORD)):
        assert secret in (PASSWORD, PASSWORD.encode())
        assert {repr(part) for part in (secret, secret[:10], secret[10:], secret[::2])} == {"***"}
        assert found_in(pretty_repr([secret], max_string=20), *PARTS) == []
    sent = b"\x01" + Secret(PASSWORD.encode()) + b"\0"
    assert (repr(sent), sent[1:-1] == PASSWORD.encode()) == ("***", True)


def test_no_error_of_publishing_shows_what_was_to_be_published(account: str, raw: Any, log: Everything) -> None:
    """Refused arguments, a missing table, a caller's broken connection: no payload, no metadata."""
    with lanelog.connect(account) as client:
        calls: list[Callable[[], object]] = [
            lambda: client.publish("t", "", PAYLOAD, metadata=METADATA),
            lambda: client.publish("t", "k", PAYLOAD.decode() + "\ud800", metadata=METADATA),
            lambda: client.publish("t", "k", [PAYLOAD.decode(), object()], metadata=METADATA),
            lambda: client.publish("t", "k", {PAYLOAD.decode(): float("nan")}),
            lambda: client.publish("t", "k", PAYLOAD * 100_000, metadata=METADATA),
            lambda: client.publish("t", "k", PAYLOAD, metadata={**METADATA, "x": "\ud800"}),
            lambda: client.publish("t", "k", PAYLOAD, metadata=dict.fromkeys(METADATA.values(), 1)),  # type: ignore[arg-type]
            lambda: client.publish_many("t", [Outgoing("k", PAYLOAD, metadata=METADATA), ("k", PAYLOAD, 3)]),  # type: ignore[list-item]
            lambda: client.publish("t", "k", PAYLOAD, metadata=METADATA, connection=object()),
            lambda: client.publish("t", "k", PAYLOAD, metadata=METADATA, connection=raw),
        ]
        rows(raw, "ALTER TABLE queue_messages RENAME TO elsewhere")
        calls.append(lambda: client.publish("t", "k", PAYLOAD, metadata=METADATA))
        calls.append(lambda: client.publish_many("t", [Outgoing("k", PAYLOAD, metadata=METADATA)]))
        for call in calls:
            error = error_of(call)
            assert isinstance(error, LanelogError)
            # Without the frame of this test, whose source is what it is about.
            texts = [str(error), repr(error), *traceback.format_exception(error.with_traceback(None))]
            assert found_in("\n".join(texts), *PARTS, *CONTENTS) == []


# -- a life ------------------------------------------------------------------------------------------------------------


def troubled(record: Record) -> Callable[[lanelog.Message], None]:
    """A handler that fails in every way, by what the key says."""

    def handle(message: lanelog.Message) -> None:
        record(message.key)
        if message.key == "reject":
            raise lanelog.Reject("no")
        if message.key == "raise" and message.attempt == 1:
            raise RuntimeError("handler")
        if message.key == "settle then raise":
            message.ack()
            raise RuntimeError("after settling")
        if message.key == "transaction":
            with message.transaction() as connection:
                rows(connection, "SELECT 1")
                raise RuntimeError("rolled back")

    return handle


def hook(message: lanelog.Message, error: str) -> None:
    raise RuntimeError("hook")


def middleware(message: lanelog.Message, call_next: Callable[[lanelog.Message], object]) -> object:
    if message.key == "middleware" and message.attempt == 1:
        raise RuntimeError("middleware")
    return call_next(message)


def wait(_: object) -> float:
    raise RuntimeError("policy")


@pytest.mark.thorough
def test_a_life_full_of_trouble_is_logged_without_secrets(account: str, raw: Any, log: Everything) -> None:
    """Handlers, hooks, policies and middleware that fail, killed connections, a lost privilege: text and locals."""
    record = Record()

    def publish(key: str) -> None:
        client.publish("t", key, PAYLOAD, metadata=METADATA)

    keys = ["good", "reject", "raise", "settle then raise", "transaction", "middleware"]
    with lanelog.connect(account, read_timeout=5.0) as client:
        client.publish_many("t", [Outgoing(key, PAYLOAD, metadata=METADATA) for key in keys])
        options: dict[str, Any] = {"on_dead_letter": hook, "middleware": (middleware,), "visibility_timeout": 30.0}
        options |= {"lease_duration": 5.0, "lease_renewal": 1.0}
        subscription = client.subscribe("t", "g", troubled(record), retry=lanelog.RetryPolicy(wait=wait), **options)
        record.until(lambda items: {*keys} <= {*items})
        eventually(lambda: {"hook.failed", "handler.raised_after_settling", "retry_policy.failed"} <= log.events)
        # The connections of loops and pool, twice; then a table goes, for longer than a lease.
        for _ in range(2):
            for each in running(raw):
                with suppress(Exception):
                    if each.user.startswith("secret"):
                        rows(raw, f"KILL {each.number}")
            publish("again")
        eventually(lambda: record.items.count("again") >= 2)
        publish("reject")
        rows(raw, "ALTER TABLE queue_delivery_state RENAME TO elsewhere")
        publish("reject")
        eventually(lambda: subscription.state == "failed", within=30)
        rows(raw, "ALTER TABLE elsewhere RENAME TO queue_delivery_state")
    assert subscription.failure is not None
    assert found_in(rendered(subscription.failure, by_rich=False), *PARTS) == []
    assert {"membership.faulty", "message.dead_lettered", "handler.failed"} <= log.events
    assert {"membership.faulty", "hook.failed", "handler.raised_after_settling"} <= log.errors.keys()


@contextmanager
def undisturbed() -> Iterator[None]:
    """No other thread gets the interpreter meanwhile: rich walks through dictionaries that the engine changes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_no_object_shows_what_it_keeps(account: str, log: Everything) -> None:
    """Every object of the library, in the middle of its work: repr, str, and rich, which looks at fields."""
    gate = Gate()
    with lanelog.connect(account) as client:
        outgoing = [Outgoing(f"k{n % 5}", PAYLOAD, metadata=METADATA) for n in range(50)]
        client.publish_many("t", outgoing)
        with gate:
            subscription = client.subscribe("t", "g", gate, workers=2)
            messages = gate.reached(2)
            assert messages[0].metadata == METADATA  # decoded, and kept
            eventually(lambda: subscription.stats().prefetched > 2)
            with client.transaction() as connection:
                client.publish("t", "k", PAYLOAD, metadata=METADATA, connection=connection)
                seen = 0
                for thing in gc.get_objects():
                    kind = type(thing)
                    if str(getattr(kind, "__module__", "")).partition(".")[0] == "lanelog":
                        seen += 1
                        text = f"{thing!r} {thing!s}"
                        assert found_in(text, *PARTS, *CONTENTS) == [], kind
                assert seen > 50
            with undisturbed():
                public = (client, subscription, messages[0], outgoing[0], client.config)
                for thing in (*public, *subscription._core.members):
                    shown = pretty_repr(thing, max_depth=9, max_length=50)
                    assert found_in(shown, *PARTS, *CONTENTS) == [], type(thing)


def test_no_warning_shows_a_password(account: str) -> None:
    """A client that nobody closed is named by its URL without the password."""
    client: Client | None = lanelog.connect(account)
    subscription = client.subscribe("t", "g", accept)
    text = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.__del__()
        subscription._core.__del__()
        text = "\n".join(f"{warning.message} {warning.source!r}" for warning in caught)
    client.close()
    assert "was never closed" in text
    assert found_in(text, *PARTS) == []
