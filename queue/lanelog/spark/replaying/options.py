"""The options of a replay, checked: which messages of an archive go where, for which group, and how fast.

Never talks to a database or to Spark.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attrs import frozen

from lanelog._base.checks import check_name, check_number
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDER: Final = "replay"
"""`delivery_order` of the group that keeps replayed messages in the log."""
NAME_MAX: Final = 200
_FASTEST: Final = 1e9


def _names(kind: str, values: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ConfigurationError(f"{kind}s must be several: write [{values!r}]")
    return tuple(sorted({check_name(kind, value) for value in values or ()}))


@frozen(kw_only=True)
class ReplayOptions:
    """One replay. An empty filter, or None, lets everything pass. See `replay`."""

    path: str
    topics: tuple[str, ...]
    to: str | None
    keys: tuple[str, ...]
    ids: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    dead_letters_of: str | None
    target_group: str | None
    rate: float | None
    given_name: str | None
    source: int = 0
    """The archived database, and `target`, the one to publish to: when their tables were created."""
    target: int = 0

    @property
    def name(self) -> str:
        """The given name, or one that follows from all other options."""
        return self.digest if self.given_name is None else self.given_name

    @property
    def digest(self) -> str:
        """A short text for what is replayed where. The rate is not part of it."""
        return _digest(
            self.source,
            self.target,
            self.topics,
            self.to,
            self.keys,
            self.ids,
            self.since,
            self.until,
            self.dead_letters_of,
            self.target_group,
        )

    @property
    def holder(self) -> str:
        """The group that keeps the replayed messages in the log until the replay is over.

        It differs for each archived database, even if two replays were given the same name.
        """
        return f"_replay-{self.name}" if self.given_name is None else f"_replay-{self.name}-{self.digest}"

    @property
    def state_file(self) -> str:
        """The file of the replay's account in the archive.

        It is a hash: a name may hold characters that a file name cannot.
        """
        return f"{hashlib.sha256(self.name.encode()).hexdigest()[:32]}.json"


def checked(
    *,
    path: str,
    topics: Sequence[str] | None,
    to: str | None,
    keys: Sequence[str] | None,
    ids: Sequence[str] | None,
    since: datetime | None,
    until: datetime | None,
    dead_letters_of: str | None,
    target_group: str | None,
    all_groups: bool,
    rate: float | None,
    name: str | None,
) -> ReplayOptions:
    """Return the options of a replay. Raises ConfigurationError."""
    chosen = _names("topic", topics)
    if dead_letters_of is not None:
        check_name("dead_letters_of", dead_letters_of)
    elif not chosen:
        raise ConfigurationError("what is to be replayed? give topics, or the group whose dead letters are meant")
    if target_group is not None and all_groups:
        raise ConfigurationError("target_group is one group: leave it out, or all_groups")
    target = target_group if target_group is not None or all_groups else dead_letters_of
    _check_names(to=to, target_group=target)
    if rate is not None:
        check_number("rate", rate, above=True, most=_FASTEST)
    _check_span(since, until)
    if name is not None and len(check_name("name", name)) > NAME_MAX:
        raise ConfigurationError(f"name must have at most {NAME_MAX} characters")
    return ReplayOptions(
        path=path,
        topics=chosen,
        to=to,
        keys=_names("key", keys),
        ids=_names("id", ids),
        since=since,
        until=until,
        dead_letters_of=dead_letters_of,
        target_group=target,
        rate=rate,
        given_name=name,
    )


def _check_names(**names: str | None) -> None:
    for what, name in names.items():
        if name is not None:
            check_name(what, name)


def _check_span(since: datetime | None, until: datetime | None) -> None:
    for what, when in (("since", since), ("until", until)):
        if when is not None and when.utcoffset() is None:
            raise ConfigurationError(f"{what} must be an aware datetime: add tzinfo=datetime.UTC")
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("since must be before until: nothing lies between them")


def _digest(*parts: object) -> str:
    texts = [part.astimezone(UTC).isoformat() if isinstance(part, datetime) else part for part in parts]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
