"""Traces from request to handler, as the SDK's in-memory exporter sees them."""

import asyncio
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import httpx
import pytest
import wrapt
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, TraceState, set_span_in_context

import lanelog
from lanelog import Client, Message
from lanelog.spark.replaying.rows import REPLAY
from lanelog.tracing import Tracing
from support.waiting import Gate, Record, accept, eventually, raising
from tracing import orders

TRACER = "test"


class Traces(TracerProvider):
    """Keeps the spans in memory."""

    def __init__(self) -> None:
        super().__init__(shutdown_on_exit=False)
        self.exporter = InMemorySpanExporter()
        self.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, *names: str) -> list[ReadableSpan]:
        """The ended spans of these names."""
        return [span for span in self.exporter.get_finished_spans() if span.name in names]


@pytest.fixture
def provider() -> Traces:
    return Traces()


@pytest.fixture
def traced(lanelog_url: str, provider: Traces) -> Iterator[Client]:
    """A client of the example, on the migrated tables."""
    with orders.connect(lanelog_url, provider) as client:
        yield client


def own(span: ReadableSpan) -> int:
    assert span.context
    return span.context.span_id


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_trace_is_seen_whole_from_the_request_to_the_handler(traced: Client, provider: Traces) -> None:
    """Request, publish and first attempt are one line of spans; the retry is a trace of its own that links to it."""

    def bill(message: Message) -> None:
        if message.attempt == 1:
            raise lanelog.Retry(delay=0)

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(orders.application(traced, provider))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as web:
            return await web.post("/orders/7")

    with orders.work(traced, bill, provider):
        answer = asyncio.run(post())
        eventually(lambda: len(provider.spans("process orders")) == 2)
    (request,) = provider.spans("POST /orders/7")
    (publish,) = provider.spans("publish orders")
    first, second = provider.spans("process orders")
    assert parent(publish) == own(request)
    assert parent(first) == own(publish)
    assert first.status.status_code is StatusCode.ERROR
    assert second.parent is None
    assert [link.context.span_id for link in second.links] == [own(publish)]
    assert dict(publish.attributes or {}) == {
        "messaging.system": "lanelog",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": answer.json()["id"],
    }
    assert dict(second.attributes or {}) == {
        "messaging.system": "lanelog",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": answer.json()["id"],
        "lanelog.offset": 1,
        "lanelog.attempt": 2,
    }


def test_without_spans_of_their_own_publishes_hand_the_current_span_on(lanelog_url: str, provider: Traces) -> None:
    """The handler's span is the request's child; what other systems have put into the trace travels, too."""
    state = TraceState([("vendor", "x")])
    tracing, seen = Tracing(provider), list[Message]()
    with lanelog.connect(lanelog_url, middleware=(tracing.publish,)) as client:
        remote = SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
        around = set_span_in_context(NonRecordingSpan(remote))
        with provider.get_tracer(TRACER).start_as_current_span("root", context=around) as root:
            client.publish("t", "k", b"x", metadata={"mine": "stays"})
            client.publish_many("t", [("k", b"y")])
        with client.subscribe("t", "g", seen.append, middleware=(tracing.handle,)):
            eventually(lambda: len(provider.spans("process t")) == 2)
    assert {parent(span) for span in provider.spans("process t")} == {root.get_span_context().span_id}
    assert not provider.spans("publish t")
    line = f"00-{0xABC:032x}-{root.get_span_context().span_id:016x}-01"
    assert dict(seen[0].metadata) == {"mine": "stays", "traceparent": line, "tracestate": "vendor=x"}


def _delayed(client: Client) -> None:
    client.publish("t", "k", b"x", delay=0.01)


def _scheduled(client: Client) -> None:
    client.schedule("each-second", "* * * * * *", "t", "k", b"x")


@pytest.mark.parametrize("send", [_delayed, _scheduled])
def test_what_comes_later_links(traced: Client, provider: Traces, send: Callable[[Client], None]) -> None:
    """A delayed message and that of a schedule begin a trace of their own, with a link to the publisher's span."""
    with provider.get_tracer(TRACER).start_as_current_span("root"):
        send(traced)
    with traced.subscribe("t", "g", lambda _: None, middleware=(Tracing(provider).handle,)):
        eventually(lambda: provider.spans("process t"))
    (sent,) = provider.spans("publish t", "schedule t")
    handled = provider.spans("process t")[0]
    assert handled.parent is None
    assert [link.context.span_id for link in handled.links] == [own(sent)]


def test_a_batch_links_to_the_publisher_of_each_of_its_messages(traced: Client, provider: Traces) -> None:
    """The handler runs in one span, which says how many messages there are; one without a trace has no link."""
    with provider.get_tracer(TRACER).start_as_current_span("root"):
        traced.publish("t", "k", b"x")
        traced.publish("t", "k", b"x")
    traced.publish("t", "k", b"x")
    batch = lanelog.Batch(3, 30)
    with traced.subscribe("t", "g", lambda _: None, batch=batch, middleware=(Tracing(provider).handle,)):
        (handled,) = eventually(lambda: provider.spans("process t"))
    assert handled.parent is None
    assert handled.attributes
    assert handled.attributes["messaging.batch.message_count"] == 3
    sent = {own(span) for span in provider.spans("publish t")}
    links = {link.context.span_id for link in handled.links}
    assert len(links & sent) == 2


def test_without_a_current_span_nothing_is_added(traced: Client, provider: Traces) -> None:
    """The message carries no trace, and its handler's span begins one without a link."""
    seen: list[Message] = []
    traced.publish("t", "k", b"x")
    with traced.subscribe("t", "g", seen.append, middleware=(Tracing(provider).handle,)):
        eventually(lambda: provider.spans("process t"))
    assert dict(seen[0].metadata) == {}
    assert provider.spans("process t")[0].parent is None
    assert not provider.spans("process t")[0].links
    assert not provider.spans("publish t")


def test_the_transaction_of_the_caller_carries_the_trace(traced: Client, provider: Traces) -> None:
    """A batch in a caller's transaction has one span, whose children are the handlers of all its messages."""
    with provider.get_tracer(TRACER).start_as_current_span("root"), traced.transaction() as connection:
        traced.publish_many("t", [("a", b"1"), lanelog.Outgoing("b", b"2")], connection=connection)
    with traced.subscribe("t", "g", lambda _: None, middleware=(Tracing(provider).handle,)):
        eventually(lambda: len(provider.spans("process t")) == 2)
    (sent,) = provider.spans("publish t")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 2
    assert {parent(span) for span in provider.spans("process t")} == {own(sent)}


def test_a_refused_publish_is_an_error_and_a_postponement_is_none(traced: Client, provider: Traces) -> None:
    """The span of each says so."""
    with provider.get_tracer(TRACER).start_as_current_span("root"):
        traced.publish("t", "k", b"x")
        with pytest.raises(lanelog.PayloadTooLarge):
            traced.publish("t", "k", b"x" * (traced.config.max_payload_bytes + 1))
    _, refused = provider.spans("publish t")
    assert (refused.attributes or {})["error.type"] == "PayloadTooLarge"
    assert refused.status.status_code is StatusCode.ERROR

    with traced.subscribe("t", "g", raising(lanelog.Postpone, 3600), middleware=(Tracing(provider).handle,)):
        (postponed,) = eventually(lambda: provider.spans("process t"))
    assert postponed.status.status_code is StatusCode.UNSET
    assert "error.type" not in (postponed.attributes or {})


@pytest.mark.thorough
def test_a_message_that_a_handler_had_before_links(traced: Client, lanelog_url: str, provider: Traces) -> None:
    """A postponed one, also in another process, and one whose handler was cut off: both start as attempt 1 again."""
    gate = Gate()

    def first(message: Message) -> None:
        if message.key == "later":
            raise lanelog.Postpone(0.1)
        gate()

    with provider.get_tracer(TRACER).start_as_current_span("root"):
        ids = [traced.publish("t", key, b"x").id for key in ("later", "cut")]
    published = {(span.attributes or {})["messaging.message.id"]: own(span) for span in provider.spans("publish t")}
    middleware = (Tracing(provider).handle,)
    subscription = traced.subscribe("t", "g", first, middleware=middleware)
    with gate:
        gate.reached()
        eventually(lambda: subscription.stats().postponed)
        assert not subscription.stop(0)
        subscription._core.cut_off()
        assert subscription.stop(20)
    first_calls = eventually(lambda: len(found := provider.spans("process t")) == 2 and found)
    with orders.connect(lanelog_url, provider) as another, another.subscribe("t", "g", accept, middleware=middleware):
        calls = eventually(lambda: len(found := provider.spans("process t")) == 4 and found)
    for span in calls:
        attributes = span.attributes or {}
        message = published[attributes["messaging.message.id"]]
        assert attributes["lanelog.attempt"] == 1
        links = [link.context.span_id for link in span.links]
        assert (parent(span), links) == ((message, []) if span in first_calls else (None, [message]))
    assert sorted((span.attributes or {})["messaging.message.id"] for span in calls[2:]) == sorted(ids)


def test_a_redriven_message_links(traced: Client, provider: Traces) -> None:
    """The copy of a dead letter keeps the trace of its message, and its handler's span links to it."""

    def reject(message: Message) -> None:
        if not provider.spans("process t"):
            raise lanelog.Reject("poison")

    with provider.get_tracer(TRACER).start_as_current_span("root"):
        traced.publish("t", "k", b"x")
    with traced.subscribe("t", "g", reject, middleware=(Tracing(provider).handle,)):
        eventually(lambda: traced.admin.redrive("t", "g", all=True, dry_run=False).messages == 1)
        eventually(lambda: len(provider.spans("process t")) == 2)
    (sent,) = provider.spans("publish t")
    first, copy = provider.spans("process t")
    assert parent(first) == own(sent)
    assert copy.parent is None
    assert [link.context.span_id for link in copy.links] == [own(sent)]


def test_a_copy_of_metadata_carries_nothing_of_its_old_trace(lanelog_url: str, provider: Traces) -> None:
    """A handler may publish what it got: the new message is a child of the current span, with no other's state."""
    old = {"mine": "stays", "traceparent": "x", "tracestate": "vendor=x", "lanelog.delayed": "true"}
    tracing, seen = Tracing(provider), list[Message]()
    with lanelog.connect(lanelog_url, middleware=(tracing.publish,)) as client:
        with provider.get_tracer(TRACER).start_as_current_span("root") as root:
            client.publish("t", "k", b"x", metadata=old)
        with client.subscribe("t", "g", seen.append, middleware=(tracing.handle,)):
            eventually(lambda: provider.spans("process t"))
    assert {*seen[0].metadata} == {"mine", "traceparent"}
    assert parent(provider.spans("process t")[0]) == root.get_span_context().span_id


def test_a_replayed_message_links(lanelog_client: Client, provider: Traces) -> None:
    """A copy from the archive has the metadata of its message, and the mark of the replay."""
    line = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    lanelog_client.publish("t", "k", b"x", metadata={"traceparent": line, REPLAY: "r"})
    with lanelog_client.subscribe("t", "g", lambda _: None, middleware=(Tracing(provider).handle,)):
        eventually(lambda: provider.spans("process t"))
    (copy,) = provider.spans("process t")
    assert copy.parent is None
    assert [link.context.span_id for link in copy.links] == [0xDEF]


class TracedCursor(wrapt.ObjectProxy):
    """What an instrumentor of a driver makes of a cursor."""

    def execute(self, *args: Any) -> Any:
        with self._self_tracer.start_as_current_span("sql", attributes={"sql": str(args[0])}):
            return self.__wrapped__.execute(*args)


class TracedConnection(wrapt.ObjectProxy):
    """The same of a connection."""

    def cursor(self, *args: Any) -> Any:
        made = TracedCursor(self.__wrapped__.cursor(*args))
        made._self_tracer = self._self_tracer
        return made


@pytest.mark.parametrize("driver", ["pymysql", *(["mysqlclient"] if find_spec("MySQLdb") else [])])
def test_an_instrumented_driver_traces_what_the_handler_says(
    lanelog_url: str, provider: Traces, monkeypatch: pytest.MonkeyPatch, driver: Literal["pymysql", "mysqlclient"]
) -> None:
    """The handler's statements are in its trace, and the loops' are in none, as with OpenTelemetry's or ddtrace's.

    A publish on the connection that it got is part of the transaction, and is announced.
    """
    tracing, tracer = Tracing(provider), provider.get_tracer("instrumentor")

    def connected(connect: Any, _instance: object, args: Any, kwargs: Any) -> Any:
        made = TracedConnection(connect(*args, **kwargs))
        made._self_tracer = tracer
        return made

    module = import_module("pymysql" if driver == "pymysql" else "MySQLdb")
    monkeypatch.setattr(module, "connect", wrapt.FunctionWrapper(module.connect, connected))

    def handle(message: Message) -> None:
        with message.transaction() as connection:
            connection.cursor().execute("SELECT 'mine'")
            client.publish("followed", "k", b"x", connection=connection)

    followed = Record()
    with (
        lanelog.connect(lanelog_url, driver=driver) as client,
        client.subscribe("t", "g", handle, middleware=(tracing.handle,)),
        client.subscribe("followed", "g", followed),
    ):
        client.publish("t", "k", b"x")
        followed.wait(1)
        eventually(lambda: provider.spans("process t"))
    (process,) = provider.spans("process t")
    sql = provider.spans("sql")
    assert process.context
    assert "SELECT 'mine'" in [(span.attributes or {})["sql"] for span in sql]
    assert {span.context.trace_id for span in sql if span.context} == {process.context.trace_id}
