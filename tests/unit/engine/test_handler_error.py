"""A handler's exception as the text that is kept with its message, and as the traceback of its log record."""

import traceback
from collections.abc import Callable

import pytest

from lanelog._base.text import summary
from lanelog._engine import handler_error
from lanelog._engine.handler_error import MAX_BYTES, clip, raised, render
from lanelog._engine.working.workers import compose
from lanelog.message import Postpone, Reject, Retry
from support.refusing import Mute


def caught(work: Callable[[], object]) -> BaseException:
    """What it raises."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def charge() -> None:
    raise ValueError("no money")


def order() -> None:
    charge()


def test_a_text_is_the_message_and_the_innermost_frames() -> None:
    """The message stands first, alone in its line, as failures are grouped by it; the innermost frame stands last."""
    lines = render(caught(order)).splitlines()
    assert lines[:2] == ["ValueError: no money", "Traceback (most recent call last):"]
    assert lines[-2].startswith(f'  File "{__file__}", line ')
    assert lines[-2].endswith(", in charge")
    assert lines[-1] == '    raise ValueError("no money")'
    assert any(line.endswith(", in order") for line in lines)


def test_an_exception_without_frames_is_its_message() -> None:
    """Such an exception is that of a time-out, or one that was made and never raised."""
    assert render(TimeoutError("too late")) == "TimeoutError: too late"


def test_the_cause_of_an_error_is_in_its_text() -> None:
    """The first cause is what somebody looks for."""

    def translate() -> None:
        try:
            charge()
        except ValueError as error:
            raise RuntimeError("the order failed") from error

    text = render(caught(translate))
    assert text.startswith("RuntimeError: the order failed\nTraceback")
    assert "\nCaused by ValueError: no money\nTraceback" in text
    assert text.endswith('    raise ValueError("no money")')


def test_the_members_of_an_exception_group_are_in_its_text() -> None:
    """An exception group says what it is a group of."""

    def both() -> None:
        raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    text = render(caught(both))
    assert "\nCaused by ValueError: a" in text
    assert "\nCaused by KeyError: 'b'" in text


def test_a_circle_of_causes_ends() -> None:
    """Each exception is reported once."""
    error, other = caught(charge), ValueError("again")
    error.__cause__, other.__cause__ = other, error
    assert render(error).count("no money") == 2  # its message, and its line of source


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise ValueError("ö" * 10_000)


def test_a_text_is_bounded_in_bytes_and_keeps_the_innermost_frames() -> None:
    """4 KiB of UTF-8, whatever the message and the stack are."""
    text = render(caught(lambda: deep(200)))
    assert len(text.encode()) <= MAX_BYTES
    assert text.startswith("ValueError: öö")
    assert text.endswith('    raise ValueError("ö" * 10_000)')
    assert len(clip("ö" * 10_000).encode()) <= MAX_BYTES
    assert clip("x" * MAX_BYTES) == "x" * MAX_BYTES
    assert clip("x" * (MAX_BYTES + 1)).endswith("x…")


def test_a_text_can_always_be_stored() -> None:
    """A lone surrogate, as of a file name, is escaped in the message and in the frames."""

    def fail() -> None:
        raise ValueError("caf\udce9")

    assert render(caught(fail)).startswith(r"ValueError: caf\udce9" + "\n")
    namespace: dict[str, Callable[[], None]] = {}
    exec(compile("def work():\n    raise ValueError('x')", "caf\udce9.py", "exec"), namespace)  # noqa: S102
    render(caught(namespace["work"])).encode()


def test_an_exception_that_cannot_be_rendered_raises_nothing() -> None:
    """The application's own class may do anything."""

    def fail() -> None:
        raise Mute

    assert render(caught(fail)).startswith("Mute: (its text could not be rendered)\n")


def test_lanelogs_own_frames_before_the_handler_are_left_out() -> None:
    """A traceback begins with the user's code; of a handler that could not be called it is whole."""

    def layer(message: object, call_next: Callable[[object], object]) -> object:
        return call_next(message)

    def handle(_message: object) -> None:
        charge()

    def begins(error: BaseException) -> str:
        exc_info = raised(error)
        return traceback.extract_tb(exc_info[2])[0].name

    handler = compose(handle, (layer,))  # type: ignore[arg-type]
    error = caught(lambda: handler(None))  # type: ignore[arg-type]
    assert begins(error) == "caught"
    own = error.with_traceback(error.__traceback__.tb_next.tb_next)  # type: ignore[union-attr]  # as a worker catches it
    assert begins(own) == "layer"
    wrong = caught(lambda: compose(lambda: None, ())(None))  # type: ignore[arg-type,misc]
    assert begins(wrong) == "caught"


@pytest.mark.parametrize("error", [Reject("bad"), Retry(1), Postpone(1)])
def test_what_a_handler_raises_to_say_what_it_wants_has_no_traceback(error: BaseException) -> None:
    """Such an exception is no fault, unless it was raised from one; nor has an attempt that ended well a traceback."""

    def say() -> None:
        raise error

    assert raised(caught(say)) is raised(None) is None
    assert "Traceback" not in render(error)
    error.__cause__ = caught(charge)
    assert raised(error) is not None
    assert "Caused by ValueError: no money" in render(error)


def test_the_summary_is_the_message_alone() -> None:
    """For a table, or a line of the log."""
    assert (summary(render(caught(order))), summary("two\nlines")) == ("ValueError: no money", "two\nlines")
    assert summary(None) is None


def test_a_text_that_fails_to_be_made_is_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception class of the application's may break whoever looks at it: a failure is never lost for that."""

    def broken(_error: BaseException) -> list[BaseException]:
        raise RuntimeError("no")

    error = caught(charge)
    monkeypatch.setattr(handler_error, "_causes", broken)
    assert render(error) == "ValueError: no money"
