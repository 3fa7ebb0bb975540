"""Pieces of the sentences that changes answer with.

Owns these words. Changes nothing.
"""

from __future__ import annotations

from lanelog._base.text import plural


def left(remaining: int, noun: str, *, dry_run: bool) -> tuple[str, ...]:
    """Return the alarm about what other transactions kept from being done, if they did."""
    if not remaining or dry_run:
        return ()
    return (f"{plural(remaining, noun)} left, because other transactions held their lanes: run it again",)
