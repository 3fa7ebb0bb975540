"""Every event that lanelog logs: its name, level, logger, what it says, and its fields.

Owns the list alone; nothing is logged from here, and the library runs without importing it. `lanelog events` shows it,
docs/reference/events.md is made from it, and a test holds it against each `log.….("event.name", …)` of the source.

Each room has its part, in alphabetical order: a new event goes there.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import field, frozen

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@frozen
class Event:
    """One event, as an application's logging sees it."""

    name: str
    level: Level
    room: str
    """The last part of its logger's name: `worker` is the logger `lanelog.worker`."""
    says: str
    """One sentence: what has happened, and what to do where something is to be done."""
    fields: tuple[str, ...] = field(converter=_words)
    """Attributes of its record. `exc_info`: its record has a traceback."""

    @property
    def logger(self) -> str:
        """The name of the logger that it goes through."""
        return f"lanelog.{self.room}"


def _admin() -> tuple[Event, ...]:
    return (
        Event(
            "messages.deleted",
            "WARNING",
            "admin",
            "An operator, or a program, deleted messages: one event for each call, after its commits.",
            "verb topic group key why messages unsettled scheduled account host pid error",
        ),
        Event(
            "messages.passed",
            "WARNING",
            "admin",
            "An operator, or a program, took a group past messages that it will not handle any more.",
            "verb topic group key why messages unsettled scheduled account host pid error",
        ),
    )


def _client() -> tuple[Event, ...]:
    return (
        Event(
            "publish.notification_failed",
            "ERROR",
            "client",
            "A schedule is declared, but this process's own scheduler could not be told: it notices at its next look.",
            "schedule exc_info",
        ),
        Event("signal.received", "INFO", "client", "A signal began the end of `client.run()`.", "signal"),
    )


def _database() -> tuple[Event, ...]:
    return (
        Event(
            "connections.missing",
            "ERROR",
            "database",
            "The server refuses connections that this client needs.",
            "missing of without error remedy",
        ),
        Event(
            "lane.mended",
            "ERROR",
            "database",
            "The tables contradicted each other about a lane, as after a partial restore, and were put right; what was "
            "in doubt is delivered again.",
            "topic key group problem offset head",
        ),
        Event(
            "tables.older",
            "WARNING",
            "database",
            "The tables are of an earlier version: this process works without what is new until they are migrated.",
            "database version known remedy",
        ),
    )


def _fetcher() -> tuple[Event, ...]:
    return (
        Event(
            "lane.ahead_of_head",
            "ERROR",
            "fetcher",
            "A lane has less than this process has seen of it: the database was set back. Memory follows it.",
            "topic key group offset head",
        ),
        Event(
            "log.hole_found",
            "ERROR",
            "fetcher",
            "The log has no message at an offset between others; the group passes it.",
            "topic key group offset head",
        ),
        Event(
            "message.vanished",
            "ERROR",
            "fetcher",
            "A message that waited for its next attempt is not in the log any more.",
            "topic key group offset",
        ),
    )


def _janitor() -> tuple[Event, ...]:
    return (
        Event(
            "dead_letters.deleted",
            "INFO",
            "janitor",
            "Dead letters that nobody had redriven or deleted were deleted: `dead_letter_retention` was over.",
            "topic messages why account host pid",
        ),
        Event(
            "deletion.denied",
            "WARNING",
            "janitor",
            "The account may not delete what retention is over for: the tables grow. Grant it, or run "
            "`lanelog maintain` with another account.",
            "topic group duty error",
        ),
        Event(
            "message.expired",
            "ERROR",
            "janitor",
            "A message expired where nobody consumes, and its group keeps no dead letters: it was dropped.",
            "topic key group offset attempt dead_letter_topic",
        ),
        Event(
            "message.expired",
            "WARNING",
            "janitor",
            "A message expired where nobody consumes: it is a dead letter now.",
            "topic key group offset attempt dead_letter_topic",
        ),
    )


def _keeper() -> tuple[Event, ...]:
    return (
        Event(
            "heartbeat.read_failed",
            "ERROR",
            "keeper",
            "Nobody can be seen alive: lanes of nobody are taken, and no others.",
            "topic group error",
        ),
        Event(
            "heartbeat.write_failed",
            "ERROR",
            "keeper",
            "The server refuses this process's sign of life; after a lease the subscription fails.",
            "topic group error",
        ),
        Event(
            "lanes.acquired",
            "INFO",
            "keeper",
            "Lanes are this process's: `keys` names the first of them, and `held` counts all that it has now.",
            "topic group lanes keys held",
        ),
        Event(
            "lanes.released",
            "INFO",
            "keeper",
            "Lanes were given back, for others to take.",
            "topic group lanes keys held",
        ),
        Event(
            "lanes.taken_over",
            "WARNING",
            "keeper",
            "A dead process's lanes are this one's now.",
            "topic group lanes owners",
        ),
        Event(
            "liveness_lock.refused",
            "ERROR",
            "keeper",
            "The server gave no liveness lock: others notice the death of this process only when its lease runs out.",
            "answer",
        ),
        Event(
            "server.changed",
            "WARNING",
            "keeper",
            "Another server answers, or the liveness lock is gone: leases and lanes are read anew.",
            "lock_held",
        ),
        Event("server.restarted", "WARNING", "keeper", "The server was restarted: lanes are read anew.", ""),
    )


def _loop() -> tuple[Event, ...]:
    return (
        Event(
            "loop.callback_failed", "ERROR", "loop", "A loop's end could not be told.", "loop callback error exc_info"
        ),
        Event(
            "loop.failed",
            "ERROR",
            "loop",
            "A background loop failed, and to try again may not help; five times in a row end the subscription.",
            "loop error retriable exc_info",
        ),
        Event(
            "loop.failed",
            "WARNING",
            "loop",
            "A background loop failed, most often because the database is away, and tries again; told once for each "
            "kind of failure until it has recovered.",
            "loop error retriable",
        ),
        Event("loop.recovered", "INFO", "loop", "A background loop works again.", "loop failures"),
    )


def _publisher() -> tuple[Event, ...]:
    return (
        Event(
            "publish.notification_failed",
            "ERROR",
            "publisher",
            "What was published is committed, but this process's own subscriptions could not be told: they notice at "
            "their next look.",
            "topic exc_info",
        ),
    )


def _scheduler() -> tuple[Event, ...]:
    return (
        Event(
            "schedule.clock_went_back",
            "WARNING",
            "scheduler",
            "The server's clock went back: a schedule waits until the time that it had reached.",
            "schedule topic key next_fire_at",
        ),
        Event(
            "schedule.faulty",
            "ERROR",
            "scheduler",
            "A schedule's row cannot be used; the others go on. Declare it anew, or remove it.",
            "schedule error",
        ),
        Event(
            "schedule.missed",
            "WARNING",
            "scheduler",
            "No process was there when a schedule was due; `published` of the missed times are published now.",
            "schedule topic key since catch_up published",
        ),
        Event(
            "scheduling.denied",
            "WARNING",
            "scheduler",
            "The account may not do what delayed messages or schedules need; `lanelog grants` tells what is missing.",
            "duty error",
        ),
    )


def _settler() -> tuple[Event, ...]:
    return (
        Event(
            "message.dead_lettered",
            "ERROR",
            "settler",
            "A message was given up and is in the dead letter topic now, from where `lanelog dlq redrive` delivers "
            "it again. Its traceback is there when this process has seen an exception.",
            "topic key group offset attempt dead_letter_topic error exc_info",
        ),
        Event(
            "message.dropped",
            "ERROR",
            "settler",
            "A message was given up, and the subscription keeps no dead letters: it is lost to this group.",
            "topic key group offset attempt error exc_info",
        ),
        Event(
            "message.expired",
            "ERROR",
            "settler",
            "A message's time to live was over before a handler could start, and the subscription keeps no dead "
            "letters: it is lost to this group.",
            "topic key group offset attempt dead_letter_topic",
        ),
        Event(
            "message.expired",
            "WARNING",
            "settler",
            "A message's time to live was over before a handler could start; it is in the dead letter topic now.",
            "topic key group offset attempt dead_letter_topic",
        ),
        Event(
            "message.vanished",
            "ERROR",
            "settler",
            "A message that was to become a dead letter is not in the log any more.",
            "topic key group offset attempt error",
        ),
    )


def _spark() -> tuple[Event, ...]:
    return (
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


def _subscription() -> tuple[Event, ...]:
    return (
        Event(
            "delivery.given_up",
            "WARNING",
            "subscription",
            "A pulled message was neither settled nor extended in time: it counts as a failed attempt.",
            "topic key group offset attempt seconds",
        ),
        Event(
            "handler.cut_off",
            "WARNING",
            "subscription",
            "A handler still ran when `drain_timeout` was over: its message goes back, and the attempt does not count.",
            "topic key group offset attempt seconds",
        ),
        Event(
            "lane.lost",
            "WARNING",
            "subscription",
            "A lane belongs to another process now, while messages of it were in work here: they are delivered there.",
            "topic key group running why",
        ),
        Event("loop.still_running", "WARNING", "subscription", "A background loop did not end in time.", "loop"),
        Event(
            "membership.failed",
            "ERROR",
            "subscription",
            "The subscription cannot go on, and stops.",
            "topic group exc_info",
        ),
        Event(
            "membership.faulty",
            "ERROR",
            "subscription",
            "A loop failed at the work for one subscription; the others go on.",
            "loop topic group exc_info",
        ),
        Event(
            "scheduler.failed",
            "ERROR",
            "subscription",
            "Delayed messages and schedules fail again and again in this process, which tries on.",
            "error",
        ),
        Event(
            "settlement.refused",
            "WARNING",
            "subscription",
            "Messages were handled, and their lane was lost before that was written: they are delivered again.",
            "topic key group offset messages why",
        ),
        Event(
            "subscription.drained",
            "INFO",
            "subscription",
            "Nothing is in work any more, what was done is committed, and all lanes are given back.",
            "topic group handled acked retried dead_lettered",
        ),
        Event(
            "subscription.started",
            "INFO",
            "subscription",
            "This process takes part in the group; `members` counts the processes that do, this one included.",
            "topic group workers order members owner",
        ),
        Event(
            "subscription.still_draining",
            "WARNING",
            "subscription",
            "The time that `stop` was given is over, and handlers still run: their lanes are kept until they end.",
            "group running",
        ),
        Event(
            "subscription.stopped",
            "INFO",
            "subscription",
            "This process takes part in the group no longer.",
            "topic group",
        ),
        Event(
            "subscription.waited",
            "WARNING",
            "subscription",
            "The end takes long: `waits_for` says what is waited for; told every five seconds.",
            "topic group seconds waits_for running lanes",
        ),
    )


def _worker() -> tuple[Event, ...]:
    return (
        Event(
            "handler.abandoned",
            "WARNING",
            "worker",
            "A handler ran longer than it may: the message counts as failed, and another thread takes the next one.",
            "topic key group offset attempt seconds",
        ),
        Event(
            "handler.failed",
            "WARNING",
            "worker",
            "A handler raised; `outcome` says what becomes of the message.",
            "topic key group offset attempt error outcome exc_info",
        ),
        Event(
            "handler.raised_after_settling",
            "WARNING",
            "worker",
            "A handler raised when its message was settled already: that stays.",
            "topic key group offset attempt exc_info",
        ),
        Event(
            "handler.slow",
            "WARNING",
            "worker",
            "A handler runs for longer than the visibility time-out.",
            "topic key group offset attempt seconds",
        ),
        Event(
            "hook.failed",
            "ERROR",
            "worker",
            "A hook of the application raised; nothing else changes.",
            "exc_info",
        ),
        Event(
            "retry_policy.failed",
            "ERROR",
            "worker",
            "The retry policy raised, or gave no number of seconds: the message is tried again after one.",
            "error attempt",
        ),
        Event(
            "settlement.refused",
            "WARNING",
            "worker",
            "A handler ended when its delivery was given up or its lane lost: the message is delivered again.",
            "topic key group offset attempt why",
        ),
    )


EVENTS: Final = (
    *_admin(),
    *_client(),
    *_database(),
    *_fetcher(),
    *_janitor(),
    *_keeper(),
    *_loop(),
    *_publisher(),
    *_scheduler(),
    *_settler(),
    *_spark(),
    *_subscription(),
    *_worker(),
)
"""All events; a name may stand there more than once, with another level or another logger."""
