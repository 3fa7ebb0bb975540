"""Which transactions of ours are open, in which thread and on which connection."""

import threading

import pytest

from lanelog._database import find_open, open_in_this_thread, own_transaction


def test_an_open_transaction_is_found_by_thread_and_by_connection() -> None:
    """Inside the block and nowhere else, also if the block raises."""
    database, raw = object(), object()
    with pytest.raises(ZeroDivisionError), own_transaction(database, raw) as entry:
        assert open_in_this_thread(database)
        assert not open_in_this_thread(object())
        assert find_open(raw) is entry
        assert find_open(object()) is None
        _ = 1 // 0
    assert not open_in_this_thread(database)
    assert find_open(raw) is None


def test_other_threads_are_not_concerned() -> None:
    """Another thread may publish meanwhile, and may be handed the connection."""
    database, raw = object(), object()
    seen: list[object] = []
    with own_transaction(database, raw) as entry:
        thread = threading.Thread(target=lambda: seen.extend([open_in_this_thread(database), find_open(raw)]))
        thread.start()
        thread.join()
    assert seen == [False, entry]
