"""Errors of a driver become errors of lanelog: what may be repeated, what to do, and what is unknown."""

import ssl

import pymysql
import pytest

from lanelog._database.translation import breaks_connection, breaks_transaction, translate, unreachable
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, PayloadTooLarge, SchemaError


def translated(code: int, text: str = "text", *, committing: bool = False) -> LanelogError:
    return translate(pymysql.err.OperationalError(code, text), committing=committing)


@pytest.mark.parametrize(
    "code",
    [0, 1020, 1040, 1053, 1203, 1205, 1213, 1290, 1792, 1836, 1927, 2002, 2003, 2006, 2013, 2055, 3572, 4031],
)
def test_what_may_pass_is_retriable(code: int) -> None:
    """Deadlocks, time-outs, lost connections, failovers and full servers: the same call may succeed later."""
    error = translated(code)
    assert (type(error), error.code, error.retriable, error.outcome_unknown) == (DatabaseError, code, True, False)
    assert str(code) in str(error)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (1044, "grant"),
        (1045, "password"),
        (1049, "create the database"),
        (1142, "grant"),
        (2026, "ssl"),
        (3159, "ssl"),
        (1062, "text (error 1062)"),
    ],
)
def test_an_error_for_an_operator_says_what_to_do(code: int, remedy: str) -> None:
    """Repeating does not help; the message says what does, and shows a number that we do not know as it is."""
    error = translated(code)
    assert (type(error), error.retriable) == (DatabaseError, False)
    assert remedy in str(error)


@pytest.mark.parametrize(
    ("denied", "role"),
    [
        ("INSERT command denied to user 'u'@'h' for table 'queue_messages'", "publisher"),
        ("INSERT command denied to user 'u'@'h' for table `jobs`.`queue_messages`", "publisher"),
        ("SELECT, UPDATE command denied to user 'u'@'h' for table 'queue_partitions'", "publisher"),
        ("SELECT with locking clause command denied to user 'u'@'h' for table 'queue_partitions'", "publisher"),
        ("DELETE command denied to user 'u'@'h' for table 'queue_partition_leases'", "consumer"),
        ("DELETE command denied to user 'u'@'h' for table `jobs`.`queue_history`", "janitor"),
        ("DELETE command denied to user 'u'@'h' for table 'queue_groups'", "dashboard"),
        ("SELECT command denied to user 'u'@'h' for table 'queue_groups'", "reader"),
        ("CREATE command denied to user 'u'@'h' for table 'queue_groups'", "owner"),
        ("UPDATE command denied to user 'u'@'h' for table 'queue_messages'", "ROLE"),
        ("INSERT command denied to user 'u'@'h' for table 'orders'", "ROLE"),
    ],
)
def test_a_missing_grant_names_the_role(denied: str, role: str) -> None:
    """The one that may least of those that have the privilege; where there is none, all of them."""
    for code in (1142, 1143):
        assert f"`lanelog grants --role {role}`" in str(translated(code, denied))


def test_who_does_not_answer_is_named() -> None:
    """Host and port, which drivers leave out; an error that has nothing to do with the address stays as it is."""
    error = unreachable(translated(2003, "Can't connect"), "db.example:3307")
    assert (type(error), error.code, error.retriable) == (DatabaseError, 2003, True)
    assert "db.example:3307" in str(error)
    refused = translated(1045, "Access denied")
    assert unreachable(refused, "db.example:3307") is refused


@pytest.mark.parametrize("code", [1044, 1045, 1129, 1130, 1698, 3032, 3118, 3159, 4151])
def test_who_was_connected_before_may_be_again(code: int) -> None:
    """A password is changed, an account locked, a server in maintenance: the settings were right."""
    refused = translated(code)
    assert not unreachable(refused, "db.example:3307").retriable
    error = unreachable(refused, "db.example:3307", before=True)
    assert (type(error), error.code, error.retriable, str(error)) == (DatabaseError, code, True, str(refused))
    older = unreachable(ConfigurationError("MySQL 5.7 is too old"), "db.example:3307", before=True)
    assert (type(older), older.retriable) == (DatabaseError, True)
    cause = pymysql.err.OperationalError(2003, "Can't connect")
    cause.original_exception = ssl.SSLCertVerificationError("self-signed certificate")  # type: ignore[attr-defined]
    for final in (translated(1049), translated(2026), translate(cause)):
        assert unreachable(final, "db.example:3307", before=True) is final


def test_aurora_s_patch_below_a_connection_has_rolled_back() -> None:
    """The number is that of any unknown error, so the text decides; the connection is replaced."""
    text = "The last transaction was aborted due to Zero Downtime Patch. Please retry."
    for committing in (False, True):
        error = translated(1105, text, committing=committing)
        assert (type(error), error.retriable, error.outcome_unknown) == (DatabaseError, True, False)
        assert (breaks_transaction(error), breaks_connection(error)) == (True, True)
    other = translated(1105, "unknown error")
    assert (other.retriable, breaks_connection(other)) == (False, False)


@pytest.mark.parametrize(("code", "kind"), [(1146, SchemaError), (1054, SchemaError), (1153, PayloadTooLarge)])
def test_some_errors_have_a_class_of_their_own(code: int, kind: type[LanelogError]) -> None:
    """Missing tables and columns ask for migrate, a small packet for a larger one."""
    error = translated(code)
    assert type(error) is kind
    assert ("`lanelog migrate`" if kind is SchemaError else "max_allowed_packet") in str(error)


def test_a_forced_engine_is_no_read_only_server() -> None:
    """Two refusals have one number. The server's words distinguish them; the setting's name there is not the cause."""
    said = "The MariaDB server is running with the NO_ENGINE_SUBSTITUTION option so it cannot execute this statement"
    error = translate(pymysql.err.OperationalError(1290, said))
    assert (type(error), error.retriable, breaks_connection(error)) == (ConfigurationError, False, False)
    assert "enforce_storage_engine" in str(error)
    assert translated(1290).retriable


@pytest.mark.parametrize(
    ("codes", "unknown"), [((2013, 2006, 1053, 1317, 1180, 0), True), ((1213, 1205, 1290, 1836), False)]
)
def test_a_commit_without_an_answer_is_unknown(codes: tuple[int, ...], unknown: bool) -> None:
    """Unless the server clearly refused: a deadlock or a read-only server has committed nothing."""
    for code in codes:
        error = translated(code, committing=True)
        assert (type(error), error.outcome_unknown, error.retriable) == (DatabaseError, unknown, True), code


def test_a_driver_that_lost_the_protocol_has_lost_the_connection() -> None:
    """An error without a number: nothing that the connection says can be trusted any more."""
    error = translate(pymysql.err.InternalError("Packet sequence number wrong - got 3 expected 1"))
    assert (error.retriable, breaks_connection(error)) == (True, True)


def test_what_breaks_what() -> None:
    """A deadlock ends the transaction and keeps the connection; a read-only server is left for another."""
    errors = (translated(1213), translated(1062), SchemaError())
    assert [breaks_transaction(error) for error in errors] == [True, False, False]
    assert [breaks_connection(translated(code)) for code in (1213, 1290, 2013)] == [False, True, True]


def test_other_drivers_numbers_are_found() -> None:
    """MySQL's own connector keeps the number in an attribute."""

    class ConnectorError(Exception):
        errno = 1213

    error = translate(ConnectorError("1213 (40001): Deadlock found"))
    assert (type(error), error.code, error.retriable) == (DatabaseError, 1213, True)


def test_a_refused_certificate_is_not_retried() -> None:
    """The certificate would be refused again; the error names the options to check."""
    cause = pymysql.err.OperationalError(2003, "Can't connect")
    cause.original_exception = ssl.SSLCertVerificationError("self-signed certificate")  # type: ignore[attr-defined]
    error = translate(cause)
    assert not error.retriable
    assert "ssl_ca" in str(error)


def test_text_that_a_connection_cannot_carry() -> None:
    """A caller's latin1 connection is a matter of configuration; translating twice is translating once."""
    with pytest.raises(UnicodeEncodeError) as caught:
        "键".encode("latin1")
    error = translate(caught.value)
    assert isinstance(error, ConfigurationError)
    assert translate(error) is error
