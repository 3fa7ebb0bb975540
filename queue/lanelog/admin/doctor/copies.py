"""What a copy or a rebuild of the tables has left: heartbeats of another server, and triggers on our tables.

Owns these two questions, for the doctor. Changes nothing, and judges no member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lanelog._base.text import plural, shown
from lanelog._stores import origins
from lanelog._stores._points import placeholders
from lanelog._stores.members import heartbeats
from lanelog.admin.doctor.finding import good, warn
from lanelog.errors import SchemaError
from lanelog.message import utc_from_ms
from lanelog.migrations.declared import declared_tables

if TYPE_CHECKING:
    from lanelog.admin.doctor.finding import Patient
    from lanelog.admin.types.results import Finding

# The triggers on our tables, which the server shows to an account with the privilege TRIGGER on them.
TRIGGERS = """SELECT trigger_name, action_timing, event_manipulation, event_object_table
FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table IN ({tables})
ORDER BY event_object_table, trigger_name"""

_SHOWN: Final = 10


def origin(patient: Patient) -> Finding:
    """Which server wrote the heartbeats."""
    database = patient.database
    if database.tables_version < heartbeats.VERSION_WITH_INCARNATION:
        return good("the tables do not say which server wrote them")
    try:
        found = origins.load(patient.cx, mariadb=database.facts().mariadb)
    except SchemaError as error:
        return warn(f"the heartbeats cannot be read: {error}", "see the schema")
    if not found.copied:
        others = f"; {found.elsewhere:,} older ones by another" if found.elsewhere else ""
        return good(f"this server wrote {plural(found.here, 'heartbeat')}{others}")
    latest = f"{utc_from_ms(found.latest_elsewhere):%Y-%m-%d %H:%M:%S} UTC"
    return warn(
        f"another server wrote {plural(found.elsewhere, 'heartbeat')}, the latest at {latest}: the tables are a copy, "
        "or the primary has changed and no member is here yet",
        "if the primary has changed, start members here; if this is a copy, they handle the original's messages again",
    )


def triggers(patient: Patient) -> Finding:
    """Which triggers there are on our tables. lanelog makes none."""
    tables = sorted(declared_tables())
    found = patient.cx.query(TRIGGERS.format(tables=placeholders(tables)), tables)
    if not found:
        return good("none that this account may see")
    named = [f"{shown(name)} ({timing} {event} on {table})" for name, timing, event, table in found]
    more = f", and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return warn(
        f"{plural(len(named), 'trigger')} on lanelog's tables, which has none of its own: "
        f"{', '.join(named[:_SHOWN])}{more}",
        "if no online schema change runs now, DROP TRIGGER each that one has left: it may refuse every write",
    )
