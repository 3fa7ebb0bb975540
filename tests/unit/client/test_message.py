import copy
import functools
import gc
import math
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import attrs
import pytest

from lanelog._log.append.middleware import publish_through
from lanelog.errors import ConfigurationError
from lanelog.message import DeadLetter, Message, Outgoing, Postpone, Publication, Receipt, Reject, Retry, utc_from_ms

Make: TypeAlias = Callable[..., Message]


class Recorder:
    """The delivery of a message, written down."""

    def __init__(self, codec: object = None) -> None:
        self.codec = codec
        self.calls: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))

    @contextmanager
    def transaction(self) -> Iterator[str]:
        self.calls.append(("begin",))
        yield "connection"
        self.calls.append(("commit",))


@pytest.fixture
def delivery() -> Recorder:
    """What the message of the test was delivered with."""
    return Recorder()


@pytest.fixture
def make(delivery: Recorder) -> Make:
    """Make a message; keyword arguments replace its fields."""
    where = {"topic": "merge", "key": "repo-42", "offset": 17, "id": "pr-17", "published_at_ms": 1_767_225_600_123}
    what = {"payload": b'{"pr": 17}', "metadata_json": None, "dead_letter": None}
    return functools.partial(Message, **where, **what, attempt=1, group="builders", fencing_token=3, delivery=delivery)


class TestMessage:
    """What a handler is given."""

    def test_its_fields(self, make: Make) -> None:
        """Place, payload and delivery are plain attributes; the database's milliseconds are exact, in UTC."""
        message = make()
        assert (message.topic, message.key, message.offset, message.id) == ("merge", "repo-42", 17, "pr-17")
        assert (message.attempt, message.group, message.fencing_token) == (1, "builders", 3)
        assert message.payload == b'{"pr": 17}'
        assert message.dead_letter is None
        assert message.json() == {"pr": 17}
        assert message.published_at == datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
        assert message.published_at.tzinfo is UTC
        assert len({message, make()}) == 2  # two deliveries are two things

    def test_metadata_is_decoded_once_and_read_only(self, make: Make) -> None:
        """A handler cannot change what the next reader sees."""
        message = make(metadata_json='{"trace":"abc"}')
        assert message.metadata == {"trace": "abc"}
        assert message.metadata is message.metadata
        with pytest.raises(TypeError):
            message.metadata["trace"] = "x"  # type: ignore[index]
        assert make().metadata == {}

    def test_a_payload_that_is_no_json_raises(self, make: Make) -> None:
        """json() leaves the decision about a bad payload to the handler and its policy."""
        with pytest.raises(ValueError, match="Expecting value"):
            make(payload=b"plain").json()

    def test_decode_goes_by_the_content_type_then_by_the_clients_codec(self, make: Make) -> None:
        """A str or a dict comes back as that; without a content type the codec decides, then the bytes are returned."""

        class Size:
            def decode(self, payload: bytes) -> int:
                return len(payload)

        coded = Recorder(Size())
        assert make().decode() == b'{"pr": 17}'
        assert make(metadata_json='{"content-type": "application/json"}').decode() == {"pr": 17}
        assert make(metadata_json='{"content-type": "text/plain"}', delivery=coded).decode() == '{"pr": 17}'
        assert make(metadata_json='{"a": "b"}', delivery=coded).decode() == 10
        with pytest.raises(ConfigurationError, match="has no codec"):
            make(metadata_json='{"content-type": "image/png"}').decode()

    def test_its_repr_hides_the_payload(self, make: Make) -> None:
        """A log shows which message, not what is in it."""
        message = make(payload=b"hunter2", metadata_json='{"token":"hunter2"}')
        assert repr(message) == (
            "<Message topic='merge' key='repo-42' offset=17 group='builders' attempt=1 id='pr-17' 7 bytes>"
        )
        assert str(message) == repr(message)

    def test_it_holds_nothing_else(self, make: Make) -> None:
        """A misspelt attribute is an error, and thousands of messages stay small."""
        with pytest.raises(AttributeError):
            make().atempt = 2  # type: ignore[attr-defined]

    def test_settling_reaches_the_delivery(self, make: Make, delivery: Recorder) -> None:
        """Each call is handed on with its arguments."""
        message = make()
        message.ack()
        message.nack()
        message.nack(5, "later")
        message.nack(delay=0, reason=None)
        message.reject("bad")
        message.postpone(60)
        message.extend(0.5)
        message.nack(timedelta(seconds=1.5))
        message.postpone(timedelta(hours=1))
        message.extend(timedelta(days=1))
        with message.transaction() as connection:
            assert connection == "connection"
        by_number = [("ack",), ("nack", None, None), ("nack", 5.0, "later"), ("nack", 0.0, None)]
        by_number += [("reject", "bad"), ("postpone", 60.0), ("extend", 0.5)]
        by_timedelta = [("nack", 1.5, None), ("postpone", 3600.0), ("extend", 86_400.0)]
        assert delivery.calls == [*by_number, *by_timedelta, ("begin",), ("commit",)]

    @pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, True, "5", timedelta(seconds=-1), 10**400])
    def test_wrong_durations_never_reach_the_delivery(self, make: Make, delivery: Recorder, value: Any) -> None:
        """A delay is finite and not negative, a number of seconds or a timedelta."""
        message = make()
        for call in (message.nack, message.postpone, message.extend):
            with pytest.raises(ConfigurationError):
                call(value)
        with pytest.raises(ConfigurationError):
            message.extend(0)
        for call in (message.postpone, message.extend):
            with pytest.raises(ConfigurationError, match="not NoneType"):
                call(None)  # type: ignore[arg-type]
        assert delivery.calls == []

    @pytest.mark.parametrize("reason", [b"bad", 7, ValueError("bad")])
    def test_a_reason_is_text(self, make: Make, delivery: Recorder, reason: Any) -> None:
        """Anything else is refused before it reaches a column; a lone surrogate is escaped, and prevents nothing."""
        for call in (lambda: make().reject(reason), lambda: make().nack(reason=reason), lambda: Reject(reason)):
            with pytest.raises(ConfigurationError, match="reason must be a str"):
                call()
        assert delivery.calls == []
        make().reject("bad \ud800 größe")
        assert delivery.calls == [("reject", "bad \\ud800 größe")]

    def test_a_dead_letter_has_its_origin(self, make: Make) -> None:
        """Readers of a dead letter topic see where a message comes from and why."""
        why = {"failed_at": utc_from_ms(0), "failure_count": 5, "last_error": "ValueError: bad"}
        origin = DeadLetter(original_topic="merge", original_offset=17, group="builders", **why)
        assert make(dead_letter=origin).dead_letter == origin
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            origin.group = "x"  # type: ignore[misc]


class TestControlFlow:
    """What a handler may raise."""

    def test_they_carry_their_argument(self) -> None:
        """By position or by name; Retry may leave the wait to the policy. Their text says who wanted what."""
        assert (Reject("bad").reason, str(Reject("bad"))) == ("bad", "bad")
        assert Reject().reason
        assert (Retry(5).delay, Retry(delay=5).delay, Retry().delay) == (5.0, 5.0, None)
        assert (Postpone(60).delay, Postpone(delay=60).delay) == (60.0, 60.0)
        assert str(Retry()) == "the handler asked for another attempt"
        assert str(Retry(5)) == "the handler asked for another attempt in 5 s"
        assert str(Postpone(60)) == "the handler postponed the message by 60 s"

    @pytest.mark.parametrize("kind", [Retry, Postpone])
    @pytest.mark.parametrize("delay", [-1, math.nan, math.inf, True, "5"])
    def test_wrong_delays_are_refused(self, kind: type[Retry | Postpone], delay: Any) -> None:
        """The mistake surfaces where it was made."""
        with pytest.raises(ConfigurationError, match="delay must be"):
            kind(delay)

    @pytest.mark.parametrize("error", [Reject("bad"), Retry(5), Retry(), Postpone(60)])
    def test_they_survive_copies(self, error: Exception) -> None:
        """A handler that works in a process pool may raise them there."""
        for duplicate in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - made in the same line
            assert type(duplicate) is type(error)
            assert vars(duplicate) == vars(error)


class TestValues:
    """What publish takes and gives."""

    def test_outgoing_is_written_like_publish(self) -> None:
        """Key and payload by position, id and metadata by name; the payload is not shown. Receipts are values."""
        item = Outgoing("repo-2", b"hunter2", id="x")
        assert (item.key, item.payload, item.id, item.metadata) == ("repo-2", b"hunter2", "x", None)
        assert "hunter2" not in repr(item)
        assert Outgoing("k", b"p", metadata={"a": "b"}).metadata == {"a": "b"}
        receipt = Receipt(offset=1, id="x", duplicate=False)
        assert receipt == Receipt(1, "x", False)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            receipt.offset = 2  # type: ignore[misc]


def test_a_publish_through_middleware_is_freed_without_the_garbage_collector() -> None:
    """The layers leave no circle that keeps the payload."""

    class Payload:
        """Anything to which a weak reference can be had."""

    def layer(publication: Publication, call_next: Callable[[Publication], Any]) -> Any:
        return call_next(publication)

    payload = Payload()
    freed = weakref.ref(payload)
    gc.disable()
    try:
        assert publish_through((layer, layer), Publication("t", (Outgoing("k", payload),)), len) == 1
        del payload
        assert freed() is None
    finally:
        gc.enable()


def test_a_time_after_all_calendars_is_shown_as_their_end() -> None:
    """A damaged row fails nobody who reads it; each time zone has the time that is shown."""
    end = datetime(9999, 1, 1, tzinfo=UTC)
    assert [utc_from_ms(ms) for ms in (2**63, 2**64 - 1)] == [end, end]
    assert utc_from_ms(1_000) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
