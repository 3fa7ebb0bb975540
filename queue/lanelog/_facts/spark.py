"""The events of the Spark side: source, archive and replay."""

from __future__ import annotations

from lanelog._facts.fact import Room

room = Room("spark")


@room.error("archive.above_head")
def archive_above_head(*, topic: str, key: str, group: str, offset: int, head: int) -> None:
    """The archive holds more of a lane than the database: the job ends."""


@room.info("archive.batch")
def archive_batch(*, version: int, messages: int, files: int) -> None:
    """Messages were archived."""


@room.warning("archive.deregister_failed")
def archive_deregister_failed(*, group: str, error: BaseException | str) -> None:
    """The job's registration could not be taken back; it expires by itself."""


@room.info("archive.forgot")
def archive_forgot(*, version: int, lanes: int) -> None:
    """Lanes that no longer exist, and all of whose messages are archived, are no longer read."""


@room.error("archive.group_was_deleted")
def archive_group_was_deleted(*, topic: str, group: str) -> None:
    """The archive's group was deleted, and is registered anew: messages deleted meanwhile are not archived."""


@room.error("archive.hole")
def archive_hole(*, topic: str, key: str, group: str, offset: int, through: int) -> None:
    """Messages were deleted before they were archived."""


@room.warning("archive.leave_failed")
def archive_leave_failed(*, topic: str, group: str, error: BaseException | str) -> None:
    """The job's hold on a topic could not be given back; it expires by itself."""


@room.info("archive.merged")
def archive_merged(*, version: int, table: str, files: int, into: int) -> None:
    """Small files became few."""


@room.info("archive.outcomes")
def archive_outcomes(*, version: int, outcomes: int) -> None:
    """Rows of history were archived."""


@room.warning("archive.paused")
def archive_paused(*, topic: str, group: str) -> None:
    """The archive waits: an operator paused its group."""


@room.warning("archive.query_failed")
def archive_query_failed(*, failures: int, error: BaseException | str) -> None:
    """Spark's query failed, and is started again."""


@room.info("archive.resumed")
def archive_resumed(*, group: str) -> None:
    """The archive's group is paused no longer."""


@room.warning("archive.taken_over")
def archive_taken_over(*, topic: str, group: str, owner: str, state: str) -> None:
    """This job took over the topic of a dead job."""


@room.info("archive.topic")
def archive_topic(*, topic: str, group: str) -> None:
    """A topic is archived from now on."""


@room.error("archive.watermark_ahead")
def archive_watermark_ahead(*, topic: str, group: str, lanes: int, key: str) -> None:
    """Some messages that the group has acked are not in the archive. Those still in the log are archived now."""


@room.info("replay.done")
def replay_done(*, name: str, published: int, duplicates: int) -> None:
    """A replay has published all."""


@room.warning("replay.leave_failed")
def replay_leave_failed(*, topic: str, group: str, error: BaseException | str) -> None:
    """The replay's hold on a topic could not be given back; it expires by itself."""


@room.error("replay.presence_failed")
def replay_presence_failed(*, error: BaseException | str) -> None:
    """The replay lost its hold on its topics."""


@room.warning("replay.still_held")
def replay_still_held(*, topic: str, group: str, owner: str) -> None:
    """Another process runs the same replay."""


@room.warning("replay.taken_over")
def replay_taken_over(*, topic: str, group: str, owner: str, state: str) -> None:
    """This replay took over the topic of a dead replay."""


@room.warning("spark.still_running")
def spark_still_running(*, program: str, waited: float) -> None:
    """Spark's cluster has not come up in time, and may still do so: find the program and end it."""


@room.info("spark.written")
def spark_written(*, published: int, duplicates: int) -> None:
    """Rows were published."""
