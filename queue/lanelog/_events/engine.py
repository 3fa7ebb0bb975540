"""The events of the engine: its loops, its workers, the thread under each loop, and the hints between processes.

In alphabetical order of their loggers.
"""

from __future__ import annotations

from typing import Final

from lanelog._events.event import Event

EVENTS: Final = (
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
    Event(
        "hints.no_socket",
        "WARNING",
        "hints",
        "A socket for hints could not be opened, or `wake_address` not be bound: what would be told there is "
        "noticed by the next look.",
        "error",
    ),
    Event(
        "hints.places_unread",
        "WARNING",
        "hints",
        "A publisher could not read who wants hints, and tries again once a second: their looks find its messages.",
        "error",
    ),
    Event(
        "dead_letters.deleted",
        "INFO",
        "janitor",
        "Dead letters that were neither redriven nor deleted by then were deleted: `dead_letter_retention` was over.",
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
        "A message expired in a group without a living member that keeps no dead letters: it was dropped.",
        "topic key group offset attempt dead_letter_topic",
    ),
    Event(
        "message.expired",
        "WARNING",
        "janitor",
        "A message expired in a group without a living member: it is a dead letter now.",
        "topic key group offset attempt dead_letter_topic",
    ),
    Event(
        "purge.behind",
        "WARNING",
        "janitor",
        "Drained lanes are not purged as fast as they come: a pass over them takes longer than a minute and than "
        "`lane_idle_purge`, and the tables grow. Run `lanelog maintain` beside it, or publish under fewer keys. Logged "
        "once until a pass is in time again.",
        "topic seconds purged",
    ),
    Event(
        "heartbeat.read_failed",
        "ERROR",
        "keeper",
        "The heartbeats cannot be read: lanes without an owner are taken, and no others.",
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
        "keeper.came_back",
        "INFO",
        "keeper",
        "This process has all connections that handling needs again, and takes its share of the lanes.",
        "",
    ),
    Event(
        "keeper.stood_aside",
        "WARNING",
        "keeper",
        "The server refuses connections without which this process handles nothing: until it has them, it is not "
        "ready, takes no lanes, and gives idle ones to others.",
        "without seconds error",
    ),
    Event(
        "lanes.acquired",
        "INFO",
        "keeper",
        "Lanes are this process's: `keys` names the first of them, and `held` counts all that it has now.",
        "topic group lanes keys held",
    ),
    Event(
        "lanes.epochs_replaced",
        "WARNING",
        "keeper",
        "Lanes had a `lease_epoch` that lanelog never writes (2^53 or more), and got another one: find out which "
        "program or restore wrote it. `keys` names the first of them.",
        "topic group lanes keys epoch",
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
    Event(
        "servers.alternate",
        "WARNING",
        "keeper",
        "New connections lead to two servers by turns, as behind a proxy that balances them: this process connects "
        "until each loop has the keeper's server. Let the address lead to the primary alone.",
        "one other",
    ),
    Event(
        "tables.of_another_server",
        "WARNING",
        "keeper",
        "Another server wrote the heartbeats: the tables are a copy, or the primary has changed and has no member yet. "
        "In a copy, this process works on the copied messages. Logged at a client's first subscription.",
        "database heartbeats latest",
    ),
    Event(
        "topic.epoch_replaced",
        "WARNING",
        "keeper",
        "The topic's row had a `max_epoch` that lanelog never writes (2^53 or more), and got another one: find out "
        "which program or restore wrote it.",
        "topic epoch",
    ),
    Event(
        "loggers.disabled",
        "WARNING",
        "logging",
        "The application's logging configuration has disabled these loggers, and what they say is lost, dead letters "
        "too. Set `disable_existing_loggers=False`. Logged once per process.",
        "loggers remedy",
    ),
    Event("loop.callback_failed", "ERROR", "loop", "A loop's end could not be told.", "loop callback error exc_info"),
    Event(
        "loop.failed",
        "ERROR",
        "loop",
        "A background loop failed. Five times in a row end the subscription, and so does a database, a table or a "
        "grant that is missing for as long as a lease.",
        "loop error retriable exc_info",
    ),
    Event(
        "loop.failed",
        "WARNING",
        "loop",
        "The database is away for a background loop, which tries again without end; logged at once, and each minute "
        "until it has recovered.",
        "loop error retriable seconds",
    ),
    Event("loop.recovered", "INFO", "loop", "A background loop works again.", "loop failures"),
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
        "schedule.tzdata_differs",
        "WARNING",
        "scheduler",
        "A schedule's next time was planned by a process with other time zone data, `planned_with`; this one has "
        "`tzdata`. Nothing is published twice. Give all processes the same version.",
        "schedule topic key timezone next_fire_at planned_with tzdata",
    ),
    Event(
        "scheduling.denied",
        "WARNING",
        "scheduler",
        "The account may not do what delayed messages or schedules need; `lanelog grants` tells what is missing.",
        "duty error",
    ),
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
        "handler.hung",
        "ERROR",
        "worker",
        "A handler hangs, as `why` says, and its process ends: the attempt counts, as after a crash. `stack` says "
        "where.",
        "topic key group offset attempt seconds why stack",
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
        "A handler runs for longer than the visibility time-out. `stack` says where: one line a frame, no variables.",
        "topic key group offset attempt seconds stack",
    ),
    Event(
        "hook.failed",
        "ERROR",
        "worker",
        "A hook of the application raised; nothing else changes.",
        "exc_info",
    ),
    Event(
        "process.end_failed",
        "ERROR",
        "worker",
        "A subscription raised while its process ends, because handlers hang: what it has may count as crashed.",
        "exc_info",
    ),
    Event(
        "process.ends",
        "ERROR",
        "worker",
        "The process ends with this exit status, because handlers hang. `written`: what all others had is given back, "
        "uncounted; if not, it counts as crashed.",
        "status written seconds",
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
