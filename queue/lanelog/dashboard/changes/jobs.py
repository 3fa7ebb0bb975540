"""Actions that take long, each on a thread of its own, with its progress.

Owns these threads and what is known of them. Jobs live in this process alone: what a job has done is done, batch by
batch, if the process ends in the middle; the audit knows it, and a repetition does the rest.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from attrs import define, field

from lanelog._database import register_shared
from lanelog._facts import dashboard as facts
from lanelog.errors import ConfigurationError, LanelogError

KEPT: Final = 50
"""Jobs that are remembered after their end."""


Progress = Callable[[int], None]


class JobStopped(LanelogError):
    """A user has stopped the job."""


@define(eq=False, kw_only=True)
class Job:
    """One action that runs. `done`, `total` and `outcome` change while it does."""

    title: str
    by: str
    why: str
    choice: Mapping[str, str]
    """Fields of the action."""
    begun_at: datetime = field(factory=lambda: datetime.now(UTC))
    id: str = field(factory=lambda: secrets.token_urlsafe(9))
    done: int = 0
    total: int | None = None
    """Messages to handle, as counted when it began. None: not counted yet."""
    result: Any = None
    """What the action returned. None: it has not returned."""
    error: Exception | None = None
    """Why it ended early. None: it did not."""
    _ended: threading.Event = field(init=False, factory=threading.Event)
    _stop: threading.Event = field(init=False, factory=threading.Event)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set()

    @property
    def state(self) -> str:
        """Its state, in words."""
        if self.running:
            return "stops after this batch" if self._stop.is_set() else "runs"
        if self.error is None:
            return "done"
        return "stopped" if isinstance(self.error, JobStopped) else f"failed: {self.error}"

    @property
    def progress(self) -> str:
        """The messages that are done, and of how many, once they are counted."""
        return f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"

    def wait(self, seconds: float) -> bool:
        """Wait until it ends. Return whether it has."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """End it after the batch that runs. What is done stays."""
        self._stop.set()

    def run(self, count: Callable[[], int], verb: Callable[[Progress], Any]) -> None:
        """Count what there is to do, do it, and remember how it ended."""
        try:
            self.total = count()
            self._progress(0)  # a user who stops it while it counts wants nothing done
            self.result = verb(self._progress)
        except LanelogError as exc:
            self.error = exc
        except Exception as exc:  # noqa: BLE001 - it is logged with its traceback
            self.error = exc
            facts.job_failed(job=self.title, exc_info=True)
        finally:
            self._ended.set()

    def _progress(self, done: int) -> None:
        self.done = done
        if self._stop.is_set():
            raise JobStopped("a user of the dashboard stopped it")


@define(eq=False)
class Jobs:
    """The jobs of this process, the newest last. Thread-safe."""

    _jobs: dict[str, Job] = field(init=False, factory=dict)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        register_shared(self)

    def abandon(self) -> None:
        """Forget, in a forked child, the parent's jobs."""
        self._jobs, self._lock = {}, threading.Lock()

    def start(self, job: Job, count: Callable[[], int], verb: Callable[[Progress], Any]) -> None:
        """Run a job, and forget the oldest that has ended."""
        with self._lock:
            ended = [each for each in self._jobs.values() if not each.running]
            for each in ended[: max(0, len(ended) - KEPT + 1)]:
                del self._jobs[each.id]
            self._jobs[job.id] = job
        threading.Thread(target=job.run, args=(count, verb), name="lanelog-dashboard-job", daemon=True).start()

    def find(self, job_id: str) -> Job:
        """Return a job. Raises ConfigurationError: this process does not know it."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise ConfigurationError(
                f"this process knows no job {job_id!r}: it ended long ago, or the dashboard was started again; "
                "the audit has what it did"
            )
        return job

    def all(self) -> list[Job]:
        """Return all, the newest first."""
        with self._lock:
            return list(self._jobs.values())[::-1]
