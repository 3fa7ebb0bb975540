"""Traces by OpenTelemetry: from the code that publishes to the handler. Needs `lanelog[otel]`, which is its API alone.

Owns names and attributes of the spans, and the metadata that carries a trace. Exports nothing: that is the
application's SDK. Names follow the semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen
from opentelemetry import context, trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lanelog.batches import Messages
from lanelog.message import Message, Outgoing, Postpone, Publication

if TYPE_CHECKING:
    from lanelog._engine.lane.run import Attempt


SYSTEM: Final = "lanelog"
DELAYED: Final = "lanelog.delayed"
"""Metadata of a traced message that was published with a delay. Its handler's span links to the publisher's."""

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_PREFIX = "lanelog."
_PROPAGATOR = TraceContextTextMapPropagator()


def _tracer(provider: trace.TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer("lanelog", tracer_provider=provider)


@frozen
class Tracing:
    """Two middlewares: one for `connect`, one for subscriptions. Thread-safe.

    Args:
        tracer_provider: Makes the spans. None: the global one.
        publish_spans: Whether each publish has a span of its own. False: the current span's context travels, and the
            handler's span is its child, which costs less. The documentation has figures: evidence/benchmarks.

    Example::

        tracing = Tracing()
        client = lanelog.connect(url, middleware=(tracing.publish,))
        client.subscribe("orders", "billing", handle, middleware=(tracing.handle,))
    """

    _tracer: trace.Tracer = field(default=None, converter=_tracer, alias="tracer_provider", repr=False)
    _publish_spans: bool = field(default=False, kw_only=True)

    def publish(self, publication: Publication, call_next: Callable[[Publication], Any]) -> Any:
        """Give each message `traceparent` and `tracestate`. Without a current span, do nothing."""
        current = trace.get_current_span().get_span_context()
        if not current.is_valid:
            return call_next(publication)
        if self._publish_spans:
            return self._publish_in_span(publication, call_next)
        return call_next(_carrying(publication, current))

    def _publish_in_span(self, publication: Publication, call_next: Callable[[Publication], Any]) -> Any:
        operation = "publish" if publication.schedule is None else "schedule"
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": "send" if publication.schedule is None else "create",
            "messaging.destination.name": publication.topic,
        }
        if len(publication.messages) > 1:
            attributes["messaging.batch.message_count"] = len(publication.messages)
        with self._tracer.start_as_current_span(
            f"{operation} {publication.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            try:
                result = call_next(_carrying(publication, span.get_span_context()))
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise
            if publication.schedule is None and len(publication.messages) == 1:
                span.set_attribute("messaging.message.id", result[0].id)
            return result

    def handle(self, message: Message | Messages, call_next: Callable[[Any], object]) -> object:
        """Run the handler in a span: a child of the publisher's, or linked to it.

        The first call of a handler is a child. Each later one, and a message that was redriven, replayed, delayed or
        fired by a schedule, begins a trace of its own with a link: the publisher's trace has usually ended by then. So
        does a batch, with a link for each message that was traced.
        """
        span = self._span_of_batch(message) if isinstance(message, Messages) else self._span_of(message)
        token = context.attach(trace.set_span_in_context(span))
        try:
            return call_next(message)
        except Postpone:  # no failure
            raise
        except BaseException as error:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise
        finally:
            context.detach(token)
            span.end()

    def _span_of(self, message: Message) -> trace.Span:
        parent, links = _parent(message)
        # `start_as_current_span` would do the same with two generators, which cost as much as half of the span.
        return self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": message.topic,
                "messaging.consumer.group.name": message.group,
                "messaging.message.id": message.id,
                "lanelog.offset": message.offset,
                "lanelog.attempt": message.attempt,
            },
            links=links,
        )

    def _span_of_batch(self, messages: Messages) -> trace.Span:
        publishers = [
            trace.get_current_span(_PROPAGATOR.extract(each.metadata, context=context.Context())).get_span_context()
            for each in messages
            if TRACEPARENT in each.metadata
        ]
        return self._tracer.start_span(
            f"process {messages[0].topic}",
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": messages[0].topic,
                "messaging.consumer.group.name": messages[0].group,
                "messaging.batch.message_count": len(messages),
            },
            links=[Link(publisher) for publisher in publishers if publisher.is_valid],
        )


def _parent(message: Message) -> tuple[context.Context | None, Sequence[Link] | None]:
    """Return the context of the handler's span, and its links. None: the current one, and no link."""
    if TRACEPARENT not in message.metadata:
        return None, None
    ambient = context.get_current()
    given = _PROPAGATOR.extract(message.metadata, context=ambient)
    # The library's own names in the metadata mark a copy, a schedule's message or a delayed one.
    if not _handled_before(message) and not any(name.startswith(_PREFIX) for name in message.metadata):
        return given, None
    publisher = trace.get_current_span(given).get_span_context()
    return None, [Link(publisher)] if publisher.is_valid and given is not ambient else None


def _handled_before(message: Message) -> bool:
    """Whether a handler has had the message before. A postponed one, or one that was cut off, has no attempt for it."""
    # What tests make by themselves has no attempt behind it.
    attempt: Attempt | None = getattr(message._delivery, "attempt", None)  # noqa: SLF001 - a part of the library
    begun = attempt is not None and (attempt.postponed > 0 or attempt.first_started != attempt.started)
    return begun or message.attempt > 1


def _carrying(publication: Publication, span: SpanContext) -> Publication:
    """Return the publication, each message with the span's context, in the form of W3C's Trace Context.

    Written for few steps: between two statements of a publish, code that was not in use for a while takes several times
    as long as in a loop.
    """
    # Not an f-string: formatting integers by `%` takes half as long.
    carrier = {TRACEPARENT: "00-%032x-%016x-%02x" % (span.trace_id, span.span_id, span.trace_flags)}  # noqa: UP031
    if span.trace_state:
        carrier[TRACESTATE] = span.trace_state.to_header()
    messages = tuple([_with(message, carrier) for message in publication.messages])
    return Publication(publication.topic, messages, publication.schedule)


def _fresh(given: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return metadata without what another trace has left in it: a handler may publish a copy of what it got."""
    if TRACESTATE not in given and DELAYED not in given:
        return given  # `traceparent` is replaced in any case
    return {name: value for name, value in given.items() if name not in (TRACESTATE, DELAYED)}


def _with(message: Outgoing, carrier: dict[str, str]) -> Outgoing:
    given: object = message.metadata
    if given is not None and not isinstance(given, Mapping):
        return message  # the publish refuses it, with its own words
    metadata = {**_fresh(given), **carrier} if given else carrier.copy()
    if message.delay is not None or message.deliver_at is not None:
        metadata[DELAYED] = "true"
    return message.with_metadata(metadata)
