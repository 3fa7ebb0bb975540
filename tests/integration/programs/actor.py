"""A process that does what a test tells it, one JSON line at a time, and stops at the points that the test has armed.

Commands: `arm` and `go` a point, `do` a step in a thread of its own. Payloads of messages (JSON objects) say what the
handler does with them: `wait` stops its first attempt here at a point of that name, `how` is then `return`,
`transaction`, `reject`, or `later`: the first attempt fails, and the next one is due in an hour.
"""

import json
import os
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import attrs
from saying import CONFIG, say, say_what_is_logged

import lanelog
from lanelog._base.places import GroupTopic
from lanelog._engine.loop_health import Bounds
from lanelog._engine.shortage import Shortage
from lanelog._log import purge_lane, repair
from lanelog._log.due import DelayedMessages
from lanelog._log.fire.recurring import RecurringSchedules
from lanelog._log.register import register
from lanelog.config import SubscriptionConfig
from support import elapsed
from support.pace import paced
from support.pauses import IN_THE_BLOCK, Pauses
from support.publishing import appender_of

if CONFIG.get("trusting"):
    elapsed.trust_heartbeats_at_once(setattr)
client = paced(
    lanelog.connect(CONFIG["url"], **CONFIG.get("connect", {})),
    keeper={"claim_seconds": 0.2},
    janitor={"turn_seconds": CONFIG.get("janitor_turn", 0.1)},
    health=Bounds(stuck=CONFIG["stuck"], unanswered=35.0) if "stuck" in CONFIG else None,
)
pauses = Pauses(say)
subscriptions: list[lanelog.Subscription] = []
waited: set[tuple[str, int]] = set()


class RolledBackError(Exception):
    """What a block raises to be rolled back."""


def publish(topic: str, key: str, payload: str = "{}", **options: Any) -> int:
    return client.publish(topic, key, payload, **options).offset


def gathered(topic: str) -> int:
    """How many messages of this process wait for the end of a transaction that another thread of it leads."""
    queue = client._publisher._group._queues.get(topic)
    return len(queue.ready) if queue is not None else 0


def publish_many(topic: str, keys: list[str]) -> list[int]:
    return [receipt.offset for receipt in client.publish_many(topic, [(key, "{}") for key in keys])]


def roll_back_unless(*, commit: bool) -> None:
    if not commit:
        raise RolledBackError


def publish_in_block(topic: str, keys: list[str], *, commit: bool = True) -> list[int]:
    """Publish to one key after the other in a caller's transaction; stop before each but the first, and at the end."""
    offsets = []
    try:
        with client.transaction() as connection:
            for number, key in enumerate(keys):
                if number:
                    pauses.stop_here(f"{IN_THE_BLOCK} before {key}")
                offsets.append(client.publish(topic, key, "{}", connection=connection).offset)
            pauses.stop_here(IN_THE_BLOCK)
            roll_back_unless(commit=commit)
    except RolledBackError:
        return []
    return offsets


def append() -> int:
    """Move one page of what is due; nobody else in this process does."""
    with closing(client._database.session("appending")) as session:
        return DelayedMessages(session, client._appender).append()


def cancel(topic: str, key: str, message_id: str) -> bool:
    return client.cancel_scheduled(topic, key, message_id)


def purge(topic: str, key: str) -> bool:
    with closing(client._database.session("purge")) as session:
        return purge_lane.drained(session, topic, key)


def audit(topic: str) -> int:
    """Look through a topic for contradictions, as a full pass does; how many were repaired."""
    with closing(client._database.session("audit")) as session:
        return len(repair.audit(session, topic).repaired)


def fire() -> int:
    """Fire what is due, once; how many messages that were."""
    client.ping()  # as before any loop starts: which columns there are is known
    firing = RecurringSchedules(client._database, appender_of(client._publisher))
    with closing(client._database.session("firing")) as session:
        firing.fire_due(session)
    return firing.fired


def register_group(topic: str, group: str, **options: Any) -> int:
    if "start_ms" in options:
        options["start"] = datetime.fromtimestamp(options.pop("start_ms") / 1000, UTC)
    config = SubscriptionConfig.from_options(**options)
    return register(client._database, GroupTopic(topic=topic, group=group), config)


def admin(verb: str, **arguments: Any) -> dict[str, Any]:
    """What a verb of `client.admin` says that it changed, as far as JSON can say it."""
    changed = attrs.asdict(getattr(client.admin, verb)(**arguments))
    return {name: value for name, value in changed.items() if isinstance(value, str | int | None)}


def subscribe(topic: str, group: str, **options: Any) -> str:
    handler: Any = handle
    if "batch" in options:
        handler, options["batch"] = handle_batch, lanelog.Batch(**options["batch"])
    subscription = client.subscribe(topic, group, handler, **{"name": CONFIG["name"], **options})
    subscriptions.append(subscription)
    return subscription.owner


def answer() -> None:
    """Heard behind everything that was said before."""


def let_pass(seconds: float) -> None:
    for subscription in subscriptions:
        elapsed.let_pass(subscription, seconds)


def lose_authority() -> None:
    """As after a lease without a heartbeat, if the keeper hangs."""
    for subscription in subscriptions:
        for member in subscription._core.members:
            member.authority_until = 0.0


def stand_aside() -> None:
    """As one whose fetcher has been refused a connection for longer than it bears."""

    def judge(shortage: Shortage, _now: float, _keeper: object) -> bool:
        changed, shortage.aside = not shortage.aside, True
        return changed

    Shortage.judge = judge  # type: ignore[method-assign]


def dying() -> list[str]:
    return list(client.health().dying)


def stop() -> bool:
    return all(subscription.stop() for subscription in subscriptions)


def handle(message: lanelog.Message) -> None:
    what = message.json()
    how = what.get("how", "return")
    fields = {"key": message.key, "offset": message.offset, "attempt": message.attempt, "token": message.fencing_token}
    say("started", **fields)
    if "wait" in what and (message.key, message.offset) not in waited:
        waited.add((message.key, message.offset))
        pauses.stop_here(what["wait"])
    if how == "later" and message.attempt == 1:
        raise lanelog.Retry(delay=3600)
    if how == "reject":
        raise lanelog.Reject("as told")
    if how == "transaction":
        try:
            with message.transaction() as connection:
                connection.cursor().execute(
                    "INSERT INTO effects (k, o, who, attempt) VALUES (%s, %s, %s, %s)",
                    (message.key, message.offset, CONFIG["name"], message.attempt),
                )
        except lanelog.LeaseLost:
            say("lost", **fields)
            return
    say("handled", **fields)


def handle_batch(messages: lanelog.Messages) -> None:
    """Write a row for each of them in one transaction; the first one's payload says where it stops before."""
    for message in messages:
        say("started", key=message.key, offset=message.offset, attempt=message.attempt)
    where = messages[0].json().get("wait")
    if where and len(messages) > 1:
        pauses.stop_here(where)
    try:
        with messages.transaction() as connection:
            connection.cursor().executemany(
                "INSERT INTO effects (k, o, who, attempt) VALUES (%s, %s, %s, %s)",
                [(each.key, each.offset, CONFIG["name"], each.attempt) for each in messages],
            )
    except lanelog.LeaseLost:
        say("lost", messages=len(messages))
        raise
    say("handled", messages=len(messages))


STEPS = {
    "answer": answer,
    "append": append,
    "cancel": cancel,
    "fire": fire,
    "gathered": gathered,
    "publish": publish,
    "publish_many": publish_many,
    "publish_in_block": publish_in_block,
    "purge": purge,
    "audit": audit,
    "register": register_group,
    "admin": admin,
    "subscribe": subscribe,
    "let_pass": let_pass,
    "lose_authority": lose_authority,
    "stand_aside": stand_aside,
    "dying": dying,
    "stop": stop,
}


def do(step: str, call: int, arguments: dict[str, Any]) -> None:
    try:
        result = STEPS[step](**arguments)
    except BaseException as error:  # noqa: BLE001 - the test is told
        say("failed", call=call, error=f"{type(error).__name__}: {error}")
    else:
        say("done", call=call, result=result)


say_what_is_logged()
pauses.install()
for line in os.fdopen(os.dup(0)):
    told = json.loads(line)
    if told["command"] == "arm":
        pauses.arm(told["point"], told["containing"])
        say("armed", point=told["point"])
    elif told["command"] == "go":
        pauses.go(told["point"])
    else:
        threading.Thread(target=do, args=(told["step"], told["call"], told["arguments"]), daemon=True).start()
client.close()
