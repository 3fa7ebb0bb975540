"""The two handlers: `rebuild` applies a job to the files, `stats` counts it for its author.

Both write inside `message.transaction()`, so that a job's effect and its ack commit together or not at all. Neither
hides an error.
"""

from __future__ import annotations

import threading
from typing import Final

from attrs import define, field

import lanelog
from demo.job import MALFORMED_LANE, Job, MalformedJob
from demo.tables import Tables

REBUILD: Final = "rebuild"
STATS: Final = "stats"
GROUPS: Final = (REBUILD, STATS)


@define(eq=False)
class Rebuild:
    """Handles a job for group `rebuild`.

    Until `released` is set, every job takes `pause` seconds more, with its transaction open. Otherwise a small history
    would be rebuilt before a worker can be killed at work.
    """

    tables: Tables
    pause: float
    released: threading.Event = field(factory=threading.Event)

    def __call__(self, message: lanelog.Message) -> None:
        """Apply the job.

        A payload that is not a job goes to the dead letters at once, because no attempt could succeed.
        """
        try:
            job = Job.decode(message.payload)
        except MalformedJob as exc:
            raise lanelog.Reject(f"malformed job: {exc}") from exc
        with message.transaction() as connection:
            self.tables.apply(connection, job)
            self.tables.note_applied(connection, message.key, message.offset, message.attempt, message.fencing_token)
            if self.pause:
                self.released.wait(self.pause)


@define(eq=False)
class Stats:
    """Handles a job for group `stats`. It passes over the malformed one."""

    tables: Tables

    def __call__(self, message: lanelog.Message) -> None:
        """Count the job."""
        if message.key == MALFORMED_LANE:
            return  # group `rebuild` rejects it
        job = Job.decode(message.payload)
        with message.transaction() as connection:
            self.tables.count(connection, message.key, job)
