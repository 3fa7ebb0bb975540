"""A ticket: one outcome, handed over once."""

import pytest

from lanelog._engine.ticket import Ticket
from lanelog.errors import LeaseLost


def test_the_first_outcome_stands() -> None:
    """A lane lost before the answer to its flush arrives: the waiting caller hears of it, and lets go once."""
    released: list[int] = []
    ticket = Ticket(lambda: released.append(1))
    ticket.resolve(LeaseLost("lost"))
    ticket.resolve()
    assert released == [1]
    with pytest.raises(LeaseLost):
        ticket.wait(0)
