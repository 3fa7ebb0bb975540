"""The examination of a server: whether lanelog can work on it, and keep its promises there.

Owns the checks, one function each, and their remedies. Changes nothing, except to repair.

`error` means that something does not work or a promise is broken, `warning` that an operator should know it. Both have
a remedy. A check that the account may not make is a warning.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from attrs import evolve

from lanelog import migrations
from lanelog._database import codes
from lanelog.admin.doctor import clock, copies, locks, trials, wake
from lanelog.admin.doctor.finding import Patient, bad, good, warn
from lanelog.admin.operate import repair, server, writes
from lanelog.errors import ConfigurationError, DatabaseError, LanelogError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lanelog._database import Database, Executor
    from lanelog._log.repair import Contradiction
    from lanelog.admin.types.results import Finding

# Settings of the server; an unknown setting has no row.
VARIABLES = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
_GLOBAL: Final = (
    "binlog_format",
    "group_replication_consistency",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_snapshot_isolation",
    "log_bin",
    "max_allowed_packet",
    "read_only",
    "sync_binlog",
    "wsrep_on",
)

_NEWEST_MYSQL, _NEWEST_MARIADB = (9, 7), (11, 8)  # MySQL's next versions are 26.x, by the year
_CONTRADICTIONS, _SHOWN = 1000, 5  # the most to find, and the most to name
_HEX_AND_ROOM = 2, 65_536  # packet bytes: two for each byte of payload, which travels as hex, and the statement


def doctor(database: Database, *, repair: bool = False, old_after: float = 300.0) -> list[Finding]:
    """See `Admin.doctor`."""
    try:
        facts = database.facts()
        with database.autocommit() as cx:
            patient = Patient(database, cx, _variables(cx, _GLOBAL), repair, old_after)
            name = "MariaDB" if facts.mariadb else "MySQL"
            where = f"{name} {'.'.join(map(str, facts.version))} at {database.config.safe_url()}"
            return [_named("reachable", good(where)), *(_made(check, patient) for check in _CHECKS)]
    except (DatabaseError, ConfigurationError) as error:
        return [_named("reachable", bad(_line(error), "check URL, server and account"))]


def _made(check: Callable[[Patient], Finding], patient: Patient) -> Finding:
    """Make one check, which has the name of its function. If it cannot be made, that is its finding."""
    try:
        found = check(patient)
    except SchemaError as error:
        found = warn(f"the tables differ: {_line(error)}", "see the schema")
    except DatabaseError as error:
        if error.code in codes.DENIED_ANYWHERE:
            found = warn(f"this account may not read it: {_line(error)}", "run it with more privileges")
        elif error.code == codes.NOT_CONVERTIBLE:
            found = warn(f"the server cannot say it at this moment: {_line(error)}", "ask again")
        elif error.retriable:
            raise
        else:
            found = bad(_line(error), "see the message")
    return _named(check.__name__.strip("_").replace("_", " "), found)


def _named(check: str, found: Finding) -> Finding:
    return evolve(found, check=check)


def _line(error: LanelogError) -> str:
    return " ".join(str(error).split())


def _variables(cx: Executor, names: tuple[str, ...]) -> dict[str, str]:
    sql = VARIABLES.format(names=",".join(["%s"] * len(names)))
    return {str(name).lower(): str(value) for name, value in cx.query(sql, names)}


# -- the checks, in the order in which they are shown ------------------------------------------------------------------


def _version(patient: Patient) -> Finding:
    facts = patient.database.facts()
    name, newest = ("MariaDB", _NEWEST_MARIADB) if facts.mariadb else ("MySQL", _NEWEST_MYSQL)
    shown = f"{name} {'.'.join(map(str, facts.version))}"
    if facts.version[:2] > newest:
        text = ".".join(map(str, newest))
        return warn(f"{shown} is untried: {text} is the newest one that was tried", "test before you rely on it")
    return good(shown)


def _replication(patient: Patient) -> Finding:
    if patient.on("wsrep_on"):
        return bad("this is a Galera cluster, which is not supported", "use a server without Galera")
    if patient.settings.get("group_replication_single_primary_mode", "ON").upper() == "OFF":
        return bad("group replication runs with several primaries", "switch it to single-primary mode")
    if patient.on("read_only"):
        return bad("the server is read-only", "connect to the primary")
    if patient.settings.get("group_replication_group_name"):
        consistency = patient.settings.get("group_replication_consistency", "EVENTUAL").upper()
        if consistency == "EVENTUAL":
            return warn(
                "group_replication_consistency is EVENTUAL: a new primary takes writes before it has applied what "
                "the old one wrote, and refuses some of them afterwards",
                "set it to BEFORE_ON_PRIMARY_FAILOVER on each member",
            )
    with suppress(SchemaError):  # `_schema` reports it
        migrations.admit(patient.database)
    why = writes.refused(patient.cx, patient.database)  # which server wrote the heartbeats: `copies.origin` reports it
    if why is not None:
        return bad(
            why.detail,
            "connect to the primary; if this is it, wait for the backup, or end what holds the lock or a dead session",
        )
    return good("a primary that takes writes")


def _schema(patient: Patient) -> Finding:
    try:
        version = migrations.check(patient.database)
    except migrations.NotAdmitted as error:
        return bad(_line(error), "upgrade lanelog")
    except SchemaError as error:
        return bad(_line(error), "run `lanelog migrate` as the owner")
    if version < migrations.VERSION:
        return warn(
            f"version {version}: this lanelog knows version {migrations.VERSION} and works without what is new in it",
            "run `lanelog migrate` as the owner, then start the processes again",
        )
    newer = "" if version == migrations.VERSION else f", which admits this lanelog of version {migrations.VERSION}"
    return good(f"version {version}{newer}")


def _privileges(patient: Patient) -> Finding:
    try:
        lacking = trials.lacking(patient.database)
    except DatabaseError as error:
        if error.code not in trials.NO_WRITES:
            raise
        return warn(
            f"those to write cannot be tried while the server takes no writes: {_line(error)}",
            "run it again on a server that takes writes",
        )
    enough = [name for name, missing in lacking.items() if not missing]
    if not enough:
        needed = ", ".join(lacking["reader"])
        return bad(f"not even enough to read: {needed}", "run what `lanelog grants --role …` prints")
    first = next(((name, missing) for name, missing in lacking.items() if missing), None)
    if first is None:
        return good(f"enough for {', '.join(enough)}")
    name, missing = first
    return good(f"enough for {', '.join(enough)}; {name} lacks {', '.join(missing)}")


def _session_settings(patient: Patient) -> Finding:
    # A session with another one that was ignored is not even reachable.
    if refused := patient.database.facts().locks_refused:
        return bad(refused, "connect to the primary directly, or let the proxy pass them on")
    return good("the server has taken what lanelog sets")


def _isolation(patient: Patient) -> Finding:
    if patient.on("log_bin") and patient.settings.get("binlog_format", "ROW").upper() == "STATEMENT":
        return bad(
            "binlog_format is STATEMENT, with which InnoDB refuses to write under READ COMMITTED",
            "SET GLOBAL binlog_format = 'ROW'",
        )
    note = ""
    if patient.on("innodb_snapshot_isolation"):
        note = (
            "; your own REPEATABLE READ transactions may fail with 1020 when they publish (innodb_snapshot_isolation)"
        )
    return good(f"READ COMMITTED{note}")


def _packet_size(patient: Patient) -> Finding:
    packet = int(patient.settings["max_allowed_packet"])
    payload = patient.database.config.max_payload_bytes
    factor, room = _HEX_AND_ROOM
    needed = payload * factor + room
    if packet < needed:
        return warn(
            f"max_allowed_packet is {packet}, a payload of max_payload_bytes ({payload}) needs {needed}",
            f"SET GLOBAL max_allowed_packet = {(needed + 1023) // 1024 * 1024}, and in the server's configuration",
        )
    return good(f"max_allowed_packet is {packet} bytes")


def _durability(patient: Patient) -> Finding:
    wrong = []
    if patient.settings.get("innodb_flush_log_at_trx_commit", "1") != "1":
        wrong.append("innodb_flush_log_at_trx_commit = 1")
    if patient.on("log_bin") and patient.settings.get("sync_binlog", "1") != "1":
        wrong.append("sync_binlog = 1")
    if patient.settings.get("innodb_doublewrite", "ON").upper() in {"OFF", "0"}:
        wrong.append("innodb_doublewrite = ON (in the configuration, with a restart)")
    if wrong:
        return warn(
            "a crash of the server may lose what `publish` has confirmed",
            "set " + ", ".join(wrong),
        )
    return good("what is committed is on disk")


def _oldest_transaction(patient: Patient) -> Finding:
    found = server.oldest_transaction(patient.cx)
    if found is None:
        return good("none is open")
    if found.seconds > patient.old_after:
        return warn(
            f"connection {found.connection} has had one open for {found.seconds:.0f} s: until it ends, deleted rows "
            "stay in every index",
            f"find out what it does (SHOW PROCESSLIST), then KILL {found.connection}",
        )
    return good(f"open for {found.seconds:.0f} s")


def _session_locks(patient: Patient) -> Finding:
    if not patient.database.config.by_lock:
        return good("none is taken: liveness is 'lease'")
    if locks.sessions_keep(patient.database, patient.cx):
        return good("a lock belongs to its session and shows to others")
    return bad(
        "a lock that one session took does not show to another: a proxy shares sessions, or several servers answer; "
        "expiry alone shows who is dead, later",
        "connect to the primary directly, switch the proxy's multiplexing off, or add liveness=lease to the URL",
    )


def _row_locks(patient: Patient) -> Finding:
    if patient.on("read_only") or patient.database.facts().locks_refused:
        return good("not tried: nothing may be locked here")
    try:
        proven = locks.rows_are_locked(patient.database, patient.cx)
    except ConfigurationError as error:
        return bad(_line(error), "use MySQL or MariaDB")
    except SchemaError:  # no such table: `_schema` reports it
        proven = False
    except DatabaseError as error:
        if error.code in trials.NO_WRITES:
            return good("not tried: the server takes no writes")
        if error.code not in codes.DENIED_ANYWHERE:
            raise
        return good("not tried: this account may lock no row of queue_schema, the owner may")
    return good("a row that one session locked is skipped by another" if proven else "not tried")


def _hints(patient: Patient) -> Finding:
    found = wake.reach(patient.database, patient.cx)
    if found.missed:
        return warn(
            found.said,
            "run it again after a `lease_duration`, when a process that died is forgotten; if it stays, check whether "
            "a subscriber hangs, or AppArmor or a sandbox forbids abstract Unix sockets; polls find messages meanwhile",
        )
    return good(found.said)


def _contradictions(patient: Patient) -> Finding:
    try:
        if patient.repair and not patient.on("read_only"):
            repaired = repair.repaired(patient.database)
            if repaired:
                return good(f"repaired: {_listed(repaired)}")
        found = repair.listed(patient.database, _CONTRADICTIONS, repair.EVERYWHERE)
    except SchemaError as error:
        return warn(f"the tables cannot be compared: {_line(error)}", "see the schema")
    if not found:
        return good("the tables agree with each other")
    remedy = "`lanelog doctor --repair`" if not patient.on("read_only") else "`lanelog doctor --repair` on the primary"
    return bad(_listed(found), f"{remedy}; find out which table was restored or lost rows")


def _listed(found: Sequence[Contradiction]) -> str:
    listed = [
        f"{each.problem} in topic {each.topic!r}, key {each.key!r}"
        + (f", group {each.group!r}" if each.group else "")
        + f" ({each.offset}; the head is {each.head})"
        for each in found[:_SHOWN]
    ]
    return "; ".join([*listed, *([f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])])


_CHECKS: Final[tuple[Callable[[Patient], Finding], ...]] = (
    _version,
    _replication,
    _schema,
    _privileges,
    _session_settings,
    _isolation,
    _packet_size,
    _durability,
    clock.clock,
    _oldest_transaction,
    _session_locks,
    _row_locks,
    _hints,
    copies.origin,
    copies.triggers,
    _contradictions,
)
