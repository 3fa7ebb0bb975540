"""The part of `Client` that declares schedules: recurring messages.

Owns this method's name and documentation; `_schedules` does the work. Inherited by `Client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lanelog._telemetry import get_logger
from lanelog.admin._schedules import declare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanelog._database import Database
    from lanelog.admin.views import ScheduleInfo
    from lanelog.message import Codec


class Declaring:
    """Declares schedules; `client.admin` shows and steers them."""

    __slots__ = ()

    _database: Database
    _announcements: _Told

    def schedule(
        self,
        name: str,
        expression: str,
        topic: str,
        key: str | None,
        payload: object,
        *,
        timezone: str = "UTC",
        catch_up: str = "latest",
        metadata: Mapping[str, str] | None = None,
        ttl: float | None = None,
        codec: Codec | None = None,
    ) -> ScheduleInfo:
        """Declare a message that is published at every time a cron expression names, once, by whichever process.

        To be called by every process that starts: declared again, the schedule goes on where it is, with the payload,
        `catch_up` and all else of the last one who declared it. With a changed expression or `timezone` it counts from
        now; the oldest time that was due by then is still published. It stays until `admin.remove_schedule`, and pauses
        by `admin.pause_schedule`. It is no part of a transaction that the caller has open.

        `name`: 1 to 200 characters. `expression`: five fields, minute hour day-of-month month day-of-week, or six with
        the second first, in an IANA time zone. Where clocks change, a fixed time of day fires once on each day (at the
        end of the gap, or at the first of the two); what has a `*` for minute or hour follows the clock on the wall.
        The id of each message is `name@2026-11-21T10:05:00Z`; its metadata has `lanelog.schedule` and
        `lanelog.fire_time` besides what is given. `ttl`: seconds from the publishing. `key` None: they go to one open
        lane, the same one each time, so that one run does not overtake the one before.

        `catch_up` says what is published of times at which no process was there: the most recent one (`"latest"`), each
        of them (`"all"`) or nothing (`"none"`). Nothing is missed as long as the oldest time that is due is late by no
        more than the schedule's period, at least 5 and at most 60 seconds: then all that is due is published.

        From now on the client has one more thread and connection, until `close()`. Raises ConfigurationError and
        PayloadTooLarge before anything is written, DatabaseError after `publish_timeout` seconds without success.
        """
        declared = declare(
            self._database,
            name,
            expression,
            topic,
            key,
            payload,
            timezone=timezone,
            catch_up=catch_up,
            metadata=metadata,
            ttl=ttl,
            codec=codec,
        )
        try:
            self._announcements.scheduled()
        except Exception:  # noqa: BLE001 - it is committed: nothing that happens here may make the caller believe otherwise
            get_logger(schedule=name).exception("publish.notification_failed", exc_info=True)
        return declared


class _Told(Protocol):
    """Who starts what fires schedules in this process."""

    def scheduled(self) -> None:
        """Something with a time of its own was written."""
