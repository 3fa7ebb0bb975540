"""What an error means to a loop: an outage without end, one that may last for a lease, or a fault."""

import pymysql
import pytest

from lanelog._database.outage import WITHOUT_END, is_away, patience
from lanelog._database.translation import translate
from lanelog.errors import ClosedError, ConfigurationError, DatabaseError, LanelogError, LeaseLost

LEASE = 15.0


def borne(code: int) -> float:
    return patience(translate(pymysql.err.OperationalError(code, "text")), LEASE)


@pytest.mark.parametrize("code", [1030, 1044, 1045, 1062, 1105, 1114, 1129, 1153, 1213, 1227, 1290, 2013, 3032, 3100])
def test_whatever_a_database_says_it_is_away(code: int) -> None:
    """Known or not, to be repeated by a publisher or not."""
    assert borne(code) == WITHOUT_END


@pytest.mark.parametrize("code", [1049, 1054, 1142, 1143, 1146])
def test_what_an_operator_has_to_put_right_may_last_for_a_lease(code: int) -> None:
    """No such database, no table or column, no grant on a table."""
    assert borne(code) == LEASE


def test_what_is_no_error_of_the_database_is_not_borne() -> None:
    """A group that was deleted, another order, an error of our own code."""
    for error in (LanelogError(), LeaseLost(), ClosedError(), ConfigurationError(), ValueError(), KeyError()):
        assert patience(error, LEASE) == 0.0
        assert not is_away(error)
    assert is_away(DatabaseError("out of step"))
