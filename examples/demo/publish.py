"""The publisher: one thread that publishes the history as messages, while the workers already handle them.

Owns the batches, and the count of published jobs. Never waits for a consumer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from attrs import define, field

import lanelog
from demo.git import Repository
from demo.history import jobs
from demo.job import MALFORMED_LANE, PART_BYTES, Job

BATCH: Final = 200
BATCH_BYTES: Final = 4 * PART_BYTES
MALFORMED: Final = b"this is no job\n\x00\xff"


def batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Yield consecutive jobs: at most BATCH of them, and not much more than BATCH_BYTES."""
    batch: list[Job] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.content)
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@define(eq=False)
class HistoryPublisher:
    """Publishes the history of some repositories to a topic. A context manager that stops it.

    Ids are derived from commit and path: publishing the history once more would change nothing.
    """

    client: lanelog.Client
    topic: str
    repositories: Sequence[Repository]
    lanes: Counter[str] = field(factory=Counter, init=False)
    jobs: int = field(default=0, init=False)
    commits: int = field(default=0, init=False)
    done: threading.Event = field(factory=threading.Event, init=False)
    error: Exception | None = field(default=None, init=False)
    _stop: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="publish", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._publish()
        except Exception as exc:  # noqa: BLE001 - raised in the main thread, by `check`
            self.error = exc
        finally:
            self.done.set()

    def _publish(self) -> None:
        for number, batch in enumerate(self._batches()):
            if self._stop.is_set():
                return
            items = [lanelog.Outgoing(job.lane, job.encode(), id=job.id) for job in batch]
            receipts = self.client.publish_many(self.topic, items)
            self.lanes.update(receipt.key for receipt in receipts if not receipt.duplicate)
            self.jobs = self.lanes.total()
            if number == 0:
                self.client.publish(self.topic, MALFORMED_LANE, MALFORMED, id="malformed")

    def _batches(self) -> Iterator[list[Job]]:
        for repository in self.repositories:
            yield from batches(self._counted(jobs(repository)))

    def _counted(self, found: Iterable[Job]) -> Iterator[Job]:
        last = None
        for job in found:
            if job.commit != last:
                self.commits, last = self.commits + 1, job.commit
            yield job
