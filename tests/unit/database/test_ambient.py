"""Which transactions of ours are open, in which thread and on which connection."""

import threading

import pytest

from lanelog._database import find_open, open_in_this_thread, own_transaction
from lanelog.errors import ConfigurationError


class Raw:
    """A driver's connection."""

    def commit(self) -> str:
        return "committed"

    rollback = commit


def test_the_ends_of_a_lent_transaction_are_refused() -> None:
    """Inside the block, by the given sentence; behind it they are the driver's again."""
    raw = Raw()
    with own_transaction(object(), raw, block="client.transaction()", instead="publish(connection=)"):
        for end in (raw.commit, raw.rollback):
            with pytest.raises(ConfigurationError, match=r"client\.transaction\(\).* publish\(connection=\)"):
                end()
    assert (raw.commit(), raw.rollback()) == ("committed", "committed")


def test_an_open_transaction_is_found_by_thread_and_by_connection() -> None:
    """Inside the block and nowhere else, also if the block raises."""
    database, raw = object(), Raw()
    with pytest.raises(ZeroDivisionError), own_transaction(database, raw, block="", instead="") as entry:
        assert open_in_this_thread(database)
        assert not open_in_this_thread(object())
        assert find_open(raw) is entry
        assert find_open(object()) is None
        _ = 1 // 0
    assert not open_in_this_thread(database)
    assert find_open(raw) is None


def test_other_threads_are_not_concerned() -> None:
    """Another thread may publish meanwhile, and may be handed the connection."""
    database, raw = object(), Raw()
    seen: list[object] = []
    with own_transaction(database, raw, block="", instead="") as entry:
        thread = threading.Thread(target=lambda: seen.extend([open_in_this_thread(database), find_open(raw)]))
        thread.start()
        thread.join()
    assert seen == [False, entry]
