"""What a program is told of its engine: in order, bounded, and never in the engine's way."""

import threading

import pytest

import lanelog
from lanelog.notices import Notice, Notices
from support.forking import exit_status_of


def notice(offset: int) -> Notice:
    return Notice(name="retried", topic="t", group="g", key="k", offset=offset)


def test_no_thread_runs_before_somebody_asks() -> None:
    """Notices without a listener cost nothing: the engine reads an empty dict."""
    notices = Notices()
    notices.close()
    assert notices.wanted == {}
    assert not [thread for thread in threading.enumerate() if thread.name == "lanelog-notices"]


def test_functions_are_called_in_order_and_the_end_waits_for_what_is_left() -> None:
    """One after the other, in a thread of their own; one that raises is logged and asked again."""
    notices, told, threads = Notices(), list[int | None](), set[str]()

    def fails(found: Notice) -> None:
        threads.add(threading.current_thread().name)
        told.append(found.offset)
        raise ValueError("the program's own")

    notices.on("retried", fails)
    for offset in range(100):
        notices.put(notice(offset))
    notices.close()
    assert (told, threads) == (list(range(100)), {"lanelog-notices"})
    with pytest.raises(lanelog.ClosedError):
        notices.on("retried", fails)


@pytest.mark.thorough
def test_a_function_that_is_slow_holds_nobody_up_and_learns_what_it_has_missed() -> None:
    """A notice that finds the queue full is dropped; the end waits for a bounded time."""
    notices, entered, go, told = Notices(room=2), threading.Event(), threading.Event(), list[int | None]()

    def slow(found: Notice) -> None:
        told.append(found.offset)
        entered.set()
        go.wait(20)

    listener = notices.on("retried", slow)
    notices.put(notice(0))
    assert entered.wait(20)
    for offset in range(1, 6):
        notices.put(notice(offset))
    assert listener.dropped == 3
    notices.close(timeout=0.01)
    go.set()
    thread = notices._thread
    thread.join(20)
    assert not thread.is_alive()
    assert told == [0]


def test_a_listener_that_was_stopped_gets_nothing_more() -> None:
    """Others of the same name are."""
    notices, told = Notices(), list[str]()
    first = notices.on("retried", lambda _: told.append("first"))
    notices.on("retried", lambda _: told.append("second"))
    first.stop()
    first.stop()
    notices.put(notice(1))
    notices.close()
    assert told == ["second"]


def test_an_unknown_notice_or_listener_is_refused() -> None:
    """A misspelt name, and what is no function."""
    with lanelog.connect("mysql://root@127.0.0.1:1/jobs") as client:
        with pytest.raises(lanelog.ConfigurationError, match="dead_lettered"):
            client.on("dead_letter", print)  # type: ignore[arg-type]
        with pytest.raises(lanelog.ConfigurationError, match="takes a Notice"):
            client.on("retried", None)  # type: ignore[arg-type]


def test_a_forked_child_has_no_listeners() -> None:
    """The listeners' thread stays with the parent."""
    with lanelog.connect("mysql://root@127.0.0.1:1/jobs") as client:
        client.on("retried", print)
        assert exit_status_of(lambda: bool(client._notices.wanted)) == 0
        assert client._notices.wanted
