"""What `status` and the front page say alike of the whole log.

Owns these words. Judges nothing: `admin.operate` does.
"""

from __future__ import annotations

from lanelog._base.text import age, plural
from lanelog.admin import Status
from lanelog.admin.operate.status import attempts_awaited, members_of


def sums(status: Status, *, behind: str, oldest: str) -> str:
    """Return the figures of the log on one line. `behind`: the lag; `oldest`: the words before the oldest age."""
    held = f"{plural(status.topics, 'topic')}, {plural(len(status.groups), 'group')}, {members_of(status)}"
    age_of_oldest = age(status.oldest_age, exact=status.oldest_age_exact)
    return f"{held}: {behind}, {oldest} {age_of_oldest}, {plural(status.dead_letters, 'dead letter')}"


def would(verb: str, done: str, *, dry_run: bool) -> str:
    """Return what is done, or would be."""
    return f"would {verb}" if dry_run else done


def nothing_stuck(waiting: int, *, complete: bool) -> str:
    """Return that no problem was found, and how many messages wait for their next attempt.

    `complete`: whether all was read.
    """
    found = "nothing is stuck" if complete else "nothing is stuck in what was read"
    return f"{found}; {attempts_awaited(waiting)}" if waiting else found
