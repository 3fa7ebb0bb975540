"""A backend for `django.tasks`: Django 6 has it, and for Django 5.2 the package django-tasks.

Each of the backend's queues is a topic, and all of them are one subscription, which `lanelog_worker` runs. A task is
published with the commit of an open `atomic()`, else at once. It runs at least once: what raises is tried again by the
retry policy, and ends in the dead letters. Results are not kept, and there are no priorities.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

try:
    from django import tasks
    from django.tasks import base, signals
    from django.tasks.backends.base import BaseTaskBackend
except ImportError:
    import django_tasks as tasks
    from django_tasks import base, signals
    from django_tasks.backends.base import BaseTaskBackend

from django.conf import settings
from django.core import checks
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from lanelog.config import SubscriptionConfig
from lanelog.contrib.django.process_client import client
from lanelog.contrib.django.transactions import is_open, publish
from lanelog.errors import ConfigurationError
from lanelog.message import Message

_OWN: Final = ("topic", "group", "key")
_ID_LETTERS: Final = 32


class LanelogBackend(BaseTaskBackend):  # type: ignore[misc]  # Django ships no types
    """Tasks as messages.

    `QUEUES` names its queues; the queue "mails" is the topic "tasks.mails". `OPTIONS` may have:

    - `topic`, `group`: names instead of "tasks".
    - `key`: a function, or its dotted path, that takes the task, its arguments and its keyword arguments. It returns
      the key, or None. The tasks of one key and one queue run one after the other.
    - Options of `Client.subscribe`, such as `workers` or `retry`. `order` is "concurrent" by default, and "serial" with
      `key`: a task that fails holds no other one back. A group keeps its order: to add `key` later, name another group.

    Example::

        TASKS = {
            "default": {
                "BACKEND": "lanelog.contrib.django.tasks.LanelogBackend",
                "QUEUES": ["default", "mails"],
                "OPTIONS": {"workers": 8},
            }
        }
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = False
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.topic = str(self.options.get("topic", "tasks"))
        self.group = str(self.options.get("group", "tasks"))
        self._key: Any = self.options.get("key")
        self._subscription = {name: value for name, value in self.options.items() if name not in _OWN}
        self._subscription.setdefault("order", "concurrent" if self._key is None else "serial")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Publish a task with the commit of the open `atomic()` on the database of `LANELOG`, or at once if none is.

        Raises what `Client.publish` raises.
        """
        self.validate_task(task)
        result = base.TaskResult(
            task=task,
            id=get_random_string(_ID_LETTERS),
            status=base.TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        topic, key = f"{self.topic}.{task.queue_name}", self._key_of(task, result)
        payload = {"task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        sends = publish if is_open() else client.publish
        sends(topic, key, payload, id=result.id, deliver_at=_aware(task.run_after))
        # No receiver's error: the task is published, and a caller that repeats it would do so under another id.
        signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def _key_of(self, task: Any, result: Any) -> str | None:
        if isinstance(self._key, str):
            self._key = import_string(self._key)
        key: str | None = None if self._key is None else self._key(task, result.args, result.kwargs)
        return key

    def subscribe(self) -> None:
        """Let the client of the process run the tasks. `lanelog_worker` calls it."""
        topics = [f"{self.topic}.{queue}" for queue in sorted(self.queues)]
        client.subscriber(topics, self.group, **self._subscription)(self.run)

    def run(self, message: Message) -> None:
        """Run the task of a message. Raises what it raises, so that the attempt has failed."""
        found = message.json()
        task = import_string(found["task"])
        if not isinstance(task, base.Task):
            raise TypeError(f"{found['task']} is no task: this process has another version of the code")
        now = timezone.now()
        result = base.TaskResult(
            # A task may have been given to this backend by `using`, and priorities are not kept.
            task=task.using(
                backend=self.alias,
                queue_name=message.topic.removeprefix(f"{self.topic}."),
                priority=base.DEFAULT_TASK_PRIORITY,
            ),
            id=message.id,
            status=base.TaskResultStatus.RUNNING,
            enqueued_at=message.published_at if settings.USE_TZ else timezone.make_naive(message.published_at),
            started_at=now,
            last_attempted_at=now,
            finished_at=None,
            args=found["args"],
            kwargs=found["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[f"{socket.gethostname()}-{os.getpid()}"] * message.attempt,
        )
        signals.task_started.send_robust(type(self), task_result=result)
        context = (base.TaskContext(task_result=result),) if task.takes_context else ()
        task.call(*context, *result.args, **result.kwargs)
        # A result is frozen, and Django's own backends change it like this.
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", base.TaskResultStatus.SUCCESSFUL)
        signals.task_finished.send_robust(type(self), task_result=result)  # an error would run the task again

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        """Yield what is wrong with the settings of this backend."""
        if not self.queues:
            yield checks.Error(
                f"TASKS[{self.alias!r}] names no QUEUES, and each of them is a topic: name them", id="lanelog.E002"
            )
        try:
            SubscriptionConfig.from_options(**self._subscription)
            if isinstance(self._key, str):
                import_string(self._key)
        except (ConfigurationError, ImportError) as error:
            yield checks.Error(f"OPTIONS of TASKS[{self.alias!r}]: {error}", id="lanelog.E003")
        for other in _backends():
            same = (other.topic, other.group) == (self.topic, self.group)
            if other.alias < self.alias and same and other.queues & self.queues:
                yield checks.Error(
                    f"TASKS[{other.alias!r}] and TASKS[{self.alias!r}] have a queue in common: give one of them "
                    "another topic or group, or other QUEUES",
                    id="lanelog.E004",
                )


def subscribe() -> None:
    """Let the client of the process run the tasks of all backends of this kind."""
    for backend in _backends():
        backend.subscribe()


def _backends() -> list[LanelogBackend]:
    found = [tasks.task_backends[alias] for alias in tasks.task_backends.settings]
    return [each for each in found if isinstance(each, LanelogBackend)]


def _aware(moment: Any) -> Any:
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment
