"""The part of `Admin` that is about schedules: recurring messages.

Owns these methods' names and documentation; `schedules` does the work. Inherited by `Admin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from lanelog._database import Database
    from lanelog.admin.views import ScheduleInfo, SchedulePaused, ScheduleRemoved, ScheduleResumed


class Recurring:
    """Schedules, as `client.admin` shows and steers them; `client.schedule` declares them."""

    __slots__ = ()

    _database: Database

    def schedules(self, limit: int = 1000) -> list[ScheduleInfo]:
        """The schedules in order of their names, at most `limit` (1 to 10,000). Locks nothing."""
        from lanelog.admin.schedules import schedules as _schedules

        return _schedules.list_schedules(self._database, limit)

    def preview_schedule(
        self, expression: str, *, timezone: str = "UTC", count: int = 10, after: datetime | None = None
    ) -> list[datetime]:
        """When a cron expression would fire: the next `count` times (1 to 1,000), aware, in that time zone.

        Later than `after`, an aware datetime; None: than the database's clock says it is. Fewer where there are no more
        within fifty years. Raises ConfigurationError for a bad expression, an unknown zone, and what never fires.
        """
        from lanelog.admin.schedules import schedules as _schedules

        return _schedules.preview(self._database, expression, timezone=timezone, count=count, after=after)

    def pause_schedule(self, name: str, *, by: str = "", reason: str = "", dry_run: bool = False) -> SchedulePaused:
        """Let a schedule publish nothing more until `resume_schedule`, in whatever process.

        Declaring it again does not end the pause. `by` and `reason` are shown by `schedules()`; at most 255 and 1,024
        characters. Waits for a transaction that is publishing for it just now.
        """
        from lanelog.admin.schedules import schedules as _schedules

        return _schedules.pause(self._database, name, by=by, reason=reason, dry_run=dry_run)

    def resume_schedule(self, name: str, *, dry_run: bool = False) -> ScheduleResumed:
        """Take a pause back. What would have been published meanwhile is skipped, whatever `catch_up` says."""
        from lanelog.admin.schedules import schedules as _schedules

        return _schedules.resume(self._database, name, dry_run=dry_run)

    def remove_schedule(self, name: str, *, dry_run: bool = False) -> ScheduleRemoved:
        """Remove a schedule; what it published stays. A process that declares it makes it anew."""
        from lanelog.admin.schedules import schedules as _schedules

        return _schedules.remove(self._database, name, dry_run=dry_run)
