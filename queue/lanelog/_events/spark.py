"""The events of the Spark side: source, archive and replay."""

from __future__ import annotations

from typing import Final

from lanelog._events.event import Event

EVENTS: Final = (
    Event(
        "archive.above_head",
        "ERROR",
        "spark",
        "The archive holds more of a lane than the database: the job ends.",
        "topic key group offset head",
    ),
    Event("archive.batch", "INFO", "spark", "Messages were archived.", "version messages files"),
    Event(
        "archive.deregister_failed",
        "WARNING",
        "spark",
        "The job's registration could not be taken back; it expires by itself.",
        "group error",
    ),
    Event(
        "archive.forgot",
        "INFO",
        "spark",
        "Lanes that are no more, and all of whose messages are archived, are no longer looked at.",
        "version lanes",
    ),
    Event(
        "archive.group_was_deleted",
        "ERROR",
        "spark",
        "The archive's group was deleted, and is registered anew: messages deleted meanwhile are not archived.",
        "topic group",
    ),
    Event(
        "archive.hole",
        "ERROR",
        "spark",
        "Messages were deleted before they were archived.",
        "topic key group offset through",
    ),
    Event(
        "archive.leave_failed",
        "WARNING",
        "spark",
        "The job's hold on a topic could not be given back; it expires by itself.",
        "topic group error",
    ),
    Event("archive.merged", "INFO", "spark", "Small files became few.", "version table files into"),
    Event("archive.outcomes", "INFO", "spark", "Rows of history were archived.", "version outcomes"),
    Event("archive.paused", "WARNING", "spark", "The archive waits: an operator paused its group.", "topic group"),
    Event(
        "archive.query_failed",
        "WARNING",
        "spark",
        "Spark's query failed, and is started again.",
        "failures error",
    ),
    Event("archive.resumed", "INFO", "spark", "The archive's group is paused no longer.", "group"),
    Event(
        "archive.taken_over",
        "WARNING",
        "spark",
        "A dead job's topic is this one's now.",
        "topic group owner state",
    ),
    Event("archive.topic", "INFO", "spark", "A topic is archived from now on.", "topic group"),
    Event(
        "archive.watermark_ahead",
        "ERROR",
        "spark",
        "The group has acked what the archive lacks; that is archived as far as it is still in the log.",
        "topic group lanes key",
    ),
    Event("replay.done", "INFO", "spark", "A replay has published all.", "name published duplicates"),
    Event(
        "replay.leave_failed",
        "WARNING",
        "spark",
        "The replay's hold on a topic could not be given back; it expires by itself.",
        "topic group error",
    ),
    Event("replay.presence_failed", "ERROR", "spark", "The replay lost its hold on its topics.", "error"),
    Event("replay.still_held", "WARNING", "spark", "Another process runs the same replay.", "topic group owner"),
    Event(
        "replay.taken_over",
        "WARNING",
        "spark",
        "A dead replay's topic is this one's now.",
        "topic group owner state",
    ),
    Event(
        "spark.still_running",
        "WARNING",
        "spark",
        "Spark's cluster has not come up in time, and may still do so: look for the program and end it.",
        "program waited",
    ),
    Event("spark.written", "INFO", "spark", "Rows were published.", "published duplicates"),
)
