"""The events of the client, publisher, subscription, administration and database.

In alphabetical order of their loggers.
"""

from __future__ import annotations

from typing import Final

from lanelog._events.event import Event

EVENTS: Final = (
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
    Event(
        "listener.failed",
        "ERROR",
        "client",
        "A function given to `client.on` raised; nothing else changes.",
        "notice topic group exc_info",
    ),
    Event(
        "observer.failed",
        "ERROR",
        "client",
        "An observer given to `client.observe` raised; nothing else changes.",
        "exc_info",
    ),
    Event(
        "publish.notification_failed",
        "ERROR",
        "client",
        "A schedule is declared, but this process's own scheduler could not be told: it notices at its next look.",
        "schedule exc_info",
    ),
    Event("signal.received", "INFO", "client", "A signal began the end of `client.run()`.", "signal"),
    Event(
        "action.asked",
        "INFO",
        "dashboard",
        "A user of the dashboard asked for an action. If neither `action.done` nor `action.failed` follows, it died.",
        "verb by why topic group key offset to id letters rate name token",
    ),
    Event(
        "action.done",
        "WARNING",
        "dashboard",
        "A user of the dashboard changed something.",
        "verb by why topic group key offset to id letters rate name token",
    ),
    Event(
        "action.failed",
        "WARNING",
        "dashboard",
        "An action of the dashboard was refused, or stopped in the middle; `error` says why.",
        "verb by why topic group key offset to id letters rate name token error",
    ),
    Event(
        "job.failed",
        "ERROR",
        "dashboard",
        "An action of the dashboard that takes long met an error that is none of this library.",
        "job exc_info",
    ),
    Event(
        "job.stopped",
        "WARNING",
        "dashboard",
        "A user of the dashboard stopped an action that takes long. What it has done stays.",
        "job by",
    ),
    Event("sample.failed", "DEBUG", "dashboard", "The charts lack a sample: the log could not be asked.", "error"),
    Event(
        "connections.missing",
        "ERROR",
        "database",
        "The server refuses connections that this client needs.",
        "missing of without error remedy",
    ),
    Event(
        "instrumentation.failed",
        "ERROR",
        "database",
        "An instrumentor of the application could not trace the connection that its code gets: it is not traced.",
        "exc_info",
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
        "packet.not_asked",
        "DEBUG",
        "database",
        "The server could not be asked whether it runs a packet that takes long. It is asked again a second later.",
        "error",
    ),
    Event(
        "packet.stopped",
        "WARNING",
        "database",
        "The server ran the first statements of a packet, and waits instead of running the next, as after KILL QUERY "
        "between two of them. The connection was closed, and its work is repeated.",
        "connection seconds",
    ),
    Event(
        "pool.too_small",
        "WARNING",
        "database",
        "A hundred times within a minute, a thread waited for a connection of the pool. `needed`: the `pool_size` with "
        "which none would have waited. Once for each client.",
        "pool_size waits needed remedy",
    ),
    Event(
        "tables.older",
        "WARNING",
        "database",
        "The tables are of an earlier version: this process works without what is new until they are migrated.",
        "database version known remedy",
    ),
    Event(
        "publish.notification_failed",
        "ERROR",
        "publisher",
        "What was published is committed, but this process's own subscriptions could not be told: they notice at "
        "their next look.",
        "topic exc_info",
    ),
    Event(
        "delivery.given_up",
        "WARNING",
        "subscription",
        "A pulled message was neither settled nor extended in time: it counts as a failed attempt.",
        "topic key group offset attempt seconds",
    ),
    Event(
        "group.registered",
        "WARNING",
        "subscription",
        "A group begins on a topic that has had messages for a minute: `again` of them it gets, whether or not a group "
        "of that name had them before, and `passed` it leaves out, as `start` says.",
        "topic group start again passed",
    ),
    Event(
        "handler.cut_off",
        "WARNING",
        "subscription",
        "A handler still ran when `drain_timeout` was over, or when its process ended because another one hung: its "
        "message goes back, and the attempt does not count.",
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
        "subscription.evicted",
        "ERROR",
        "subscription",
        "The group was deleted while it had members: `lanelog worker` runs the other handlers, and this one only with "
        "`--recreate`.",
        "group topics error",
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
