"""A process that declares a schedule, and fires what is due when it is told how late it is.

Its scheduler's connection has the told time for the database's clock. `start` is what a process does that begins anew.
It runs on the version before this one, too.
"""

import json
import os
import time
from decimal import Decimal
from typing import Any

from saying import CONFIG, say, say_what_is_logged

import lanelog
from lanelog._engine.engine import Engine
from lanelog._engine.scheduling.scheduler import Scheduler

Engine.schedule = lambda _engine, **_: None  # type: ignore[method-assign] # only what it is told
say_what_is_logged()
client = lanelog.connect(CONFIG["url"], pool_size=2)
client.ping()
scheduler: Scheduler | None = None


def context_of(client: lanelog.Client) -> Any:
    """The client's engine, as its scheduler sees it."""
    try:
        from lanelog._engine.engine_context import EngineContext
        from lanelog._log.append.appender import Appender
    except ModuleNotFoundError:  # the version before
        from lanelog._engine import context

        return context.EngineContext(client._database, client._publisher.ensure_lanes, bool)
    return EngineContext(client._database, Appender(client._publisher.lanes, bool))


def turn(at: int) -> None:
    """Turns of the scheduler until nothing more can be done at that time."""
    global scheduler  # noqa: PLW0603 - the process has one
    if scheduler is None:
        scheduler = Scheduler(context_of(client))
    scheduler.session.execute("SET SESSION timestamp = %s", (Decimal(at) / 1000,))
    while scheduler.turn(time.monotonic()) == 0.0:
        pass


say("ready", code=lanelog.__file__)
for line in os.fdopen(os.dup(0)):
    told = json.loads(line)
    if "declare" in told:
        client.schedule("s", told["declare"], "t", "k", b"x", timezone=told["timezone"], catch_up=told["catch_up"])
    elif "start" in told:
        if scheduler is not None:
            scheduler.close()
        scheduler = None
    else:
        turn(told["turn"])
    say("done")
client.close()
