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


def names(kind: str, values: Sequence[str] | None) -> tuple[str, ...]:
    """Return several names, in order and each once. Raises ConfigurationError."""
    if isinstance(values, str):
        raise ConfigurationError(f"{kind}s must be several: write [{values!r}]")
    return tuple(sorted({check_name(kind, value) for value in values or ()}))


@frozen(kw_only=True)
class ReplayOptions:
    """One replay, as `replay` describes it. Raises ConfigurationError.

    An empty filter, or None, lets everything pass.
    """

    path: str
    topics: tuple[str, ...] = ()
    to: str | None = None
    keys: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    dead_letters_of: str | None = None
    target_group: str | None = None
    all_groups: bool = False
    rate: float | None = None
    given_name: str | None = None
    source: int = 0
    """The archived database, and `target`, the one to publish to: when their tables were created."""
    target: int = 0

    def __attrs_post_init__(self) -> None:
        if self.dead_letters_of is None and not self.topics:
            raise ConfigurationError("what is to be replayed? give topics, or the group whose dead letters are meant")
        if self.target_group is not None and self.all_groups:
            raise ConfigurationError("target_group is one group: leave it out, or all_groups")
        for what in ("dead_letters_of", "to", "target_group"):
            if getattr(self, what) is not None:
                check_name(what, getattr(self, what))
        if self.rate is not None:
            check_number("rate", self.rate, above=True, most=_FASTEST)
        for what, when in (("since", self.since), ("until", self.until)):
            if when is not None and when.utcoffset() is None:
                raise ConfigurationError(f"{what} must be an aware datetime: add tzinfo=datetime.UTC")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ConfigurationError("since must be before until: nothing lies between them")
        if self.given_name is not None and len(check_name("name", self.given_name)) > NAME_MAX:
            raise ConfigurationError(f"name must have at most {NAME_MAX} characters")

    @property
    def receiver(self) -> str | None:
        """The only group that gets the messages. None: every group."""
        return self.target_group if self.target_group is not None or self.all_groups else self.dead_letters_of

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
            self.receiver,
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


def _digest(*parts: object) -> str:
    texts = [part.astimezone(UTC).isoformat() if isinstance(part, datetime) else part for part in parts]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
