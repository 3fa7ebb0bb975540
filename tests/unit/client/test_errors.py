import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from lanelog import errors
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, PayloadTooLarge

OTHERS = [errors.AlreadySettled, errors.ClosedError, errors.LeaseLost, errors.SchemaError]
TREE = [ConfigurationError, DatabaseError, PayloadTooLarge, *OTHERS]


def test_the_tree_holds_exactly_the_documented_errors() -> None:
    """Every error of the module descends from LanelogError, and there are no others."""
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == {error.__name__ for error in TREE} | {"LanelogError"}
    assert all(issubclass(error, LanelogError) for error in TREE)


@pytest.mark.parametrize("error", TREE)
def test_without_a_message_the_docstring_speaks(error: type[LanelogError]) -> None:
    """An error raised bare says what happened and what to do, on one line; a message of the place that raises wins.

    Only who knows that repeating may help says so.
    """
    text = str(error())
    assert text == error.__doc__
    assert "\n" not in text
    assert ":" in text
    assert str(error("what happened here")) == "what happened here"
    assert error().retriable is False


def test_a_database_error_has_code_and_outcome() -> None:
    """The fields of a DatabaseError are those that were given, to it and to no other."""
    error = DatabaseError("lost during COMMIT", code=2013, retriable=True, outcome_unknown=True)
    assert (error.code, error.retriable, error.outcome_unknown) == (2013, True, True)
    assert (DatabaseError().code, DatabaseError().retriable, DatabaseError().outcome_unknown) == (None, False, False)


def through_a_pipe(error: DatabaseError) -> DatabaseError:
    """What another process receives."""
    received: DatabaseError = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the same line
    return received


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, through_a_pipe])
def test_a_database_error_survives_copies(duplicate: Callable[[DatabaseError], DatabaseError]) -> None:
    """A process pool or Spark brings the error back with all its fields."""
    error = duplicate(DatabaseError("deadlock", code=1213, retriable=True))
    assert type(error) is DatabaseError
    assert (str(error), error.code, error.retriable, error.outcome_unknown) == ("deadlock", 1213, True, False)


def test_an_oversized_payload_is_a_configuration_error() -> None:
    """A caller that catches wrong arguments catches too large payloads with them."""
    with pytest.raises(ConfigurationError):
        raise PayloadTooLarge
