"""What the dashboard can change: for each action its fields, its method of `Admin`, and whether it destroys.

Owns this table. Never decides who may act (`action_handlers` does), and never talks to a browser. The preview is the
method itself, with `dry_run`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from attrs import frozen

from lanelog._base.text import moment
from lanelog.admin import Admin
from lanelog.admin.lookup.arguments import BY_MAX, unheard
from lanelog.dashboard.views import WebButton, link
from lanelog.errors import ConfigurationError


@frozen(kw_only=True)
class Doer:
    """Who acts, and why."""

    by: str
    why: str
    dry_run: bool
    """Whether this is the preview."""
    progress: Callable[[int], None] = unheard
    """Called with the messages that are done, by methods that take long."""


Fields = Mapping[str, str]
Verb = Callable[[Admin, Fields, Doer], Any]


def always(_planned: Any) -> bool:
    """Say that an action destroys, whatever its preview says."""
    return True


@frozen(kw_only=True)
class WebAction:
    """One action."""

    label: str
    warning: str
    """What the preview says about it."""
    needs: tuple[str, ...]
    """Fields that it must have."""
    may: tuple[str, ...] = ()
    """Fields that it may have."""
    asks: Mapping[str, str] = {}
    """Fields that a person fills in, each with its label. What is in `may` changes nothing of the preview."""
    long: bool = False
    """Whether it may take minutes. Then the result of its method has `messages`."""
    typed: str = ""
    """The field whose value a person must type before something is lost for good. Empty: nothing ever is."""
    destroys: Callable[[Any], bool] = always
    """Given the preview's value: whether something is lost for good. It counts only together with `typed`."""
    fixed: Callable[[Admin, Fields], Fields] = lambda _, fields: fields
    """Returns the fields with what is relative in them made absolute, so that the click does what the preview said."""
    verb: Verb

    @property
    def red(self) -> bool:
        """Whether it always destroys: then the buttons that lead to it say so, too."""
        return bool(self.typed) and self.destroys is always

    def loses(self, planned: Any) -> bool:
        """Return whether the action would lose something for good, given its preview."""
        return bool(self.typed) and self.destroys(planned)

    def chosen(self, given: Fields) -> dict[str, str]:
        """Return the fields of this action. Refuse a request without one that it needs."""
        missing = [name for name in self.needs if not given.get(name)]
        if missing:
            raise ConfigurationError(f"the request names no {', '.join(missing)}")
        return {name: given[name] for name in (*self.needs, *self.may) if given.get(name)}


def _read(at: Fields) -> dict[str, Any]:
    """Return the fields as arguments of a method, which have the same names: numbers and times are read."""
    found: dict[str, Any] = dict(at)
    if "offset" in at:
        found["offset"] = whole("offset", at["offset"])
    if "rate" in at:
        found["rate"] = float(whole("rate", at["rate"]))
    if "to" in at and at["to"] not in ENDS:
        found["to"] = whole("to", at["to"]) if at["to"].isdecimal() else instant(at["to"])
    return found


def _letters(at: Fields) -> dict[str, Any]:
    """Return the fields with the choice of dead letters: one by its id, or all of a reason.

    A missing field never means all.
    """
    found = _read(at)
    one, reason = found.pop("id", None), found.pop("letters", None)
    if one is None and reason is None:
        raise ConfigurationError("the request names neither a dead letter nor a reason")
    return {**found, **({"reason": reason} if one is None else {"ids": [one]})}


def _fixed(admin: Admin, at: Fields) -> Fields:
    """Return the fields of a seek. `-2h` becomes the time two hours before the database's."""
    relative = RELATIVE.fullmatch(at["to"].strip())
    if not relative:
        return at
    back = timedelta(**{UNITS[relative[2]]: int(relative[1])})
    return {**at, "to": moment(admin.now() - back)}


def instant(text: str) -> datetime:
    """Return a time, in UTC if it names no zone."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"to must be {', '.join(ENDS)}, an offset, a time such as 2026-11-27T09:00 (UTC), or -2h; not {text[:40]!r}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _with_token(_admin: Admin, at: Fields) -> Fields:
    """Return the fields with a token. The preview's form has it, so a form that is sent twice publishes once."""
    return at if "token" in at else {**at, "token": secrets.token_hex(8)}


def whole(name: str, text: str) -> int:
    """Return a whole number from an address or a form. No offset has more digits than `DIGITS_MAX`."""
    if not text.isdecimal() or len(text) > DIGITS_MAX:
        raise ConfigurationError(f"{name} must be a whole number of at most {DIGITS_MAX} digits, not {text[:40]!r}")
    return int(text)


DIGITS_MAX: Final = 18
ENDS: Final = ("earliest", "latest")
RELATIVE: Final = re.compile(r"-([0-9]{1,5})([smhd])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_LANE = ("topic", "group", "key")
_GROUP = ("topic", "group")

ACTIONS: Final[Mapping[str, WebAction]] = {
    "skip": WebAction(
        label="Skip the message",
        warning="The group never handles this message. The lane goes on with the next one.",
        needs=(*_LANE, "offset"),
        typed="offset",
        verb=lambda admin, at, doer: admin.skip(**_read(at), reason=doer.why or "preview", dry_run=doer.dry_run),
    ),
    "retry": WebAction(
        label="Retry now",
        warning="Messages that wait for their next attempt are handed out at once. What else is in flight in this lane "
        "may be handled twice.",
        needs=_LANE,
        may=("offset",),
        verb=lambda admin, at, doer: admin.retry(**_read(at), dry_run=doer.dry_run),
    ),
    "release": WebAction(
        label="Release the lane",
        warning="Its owner loses the lane, and another member takes it. What is in flight may be handled twice.",
        needs=_LANE,
        verb=lambda admin, at, doer: admin.release(**_read(at), dry_run=doer.dry_run),
    ),
    "pause": WebAction(
        label="Pause",
        warning="Nothing more is handed out until it is resumed.",
        needs=_GROUP,
        may=("key",),
        verb=lambda admin, at, doer: admin.pause(
            **_read(at), by=doer.by[:BY_MAX], reason=doer.why, dry_run=doer.dry_run
        ),
    ),
    "resume": WebAction(
        label="Resume",
        warning="Messages are handed out again.",
        needs=_GROUP,
        may=("key",),
        verb=lambda admin, at, doer: admin.resume(**_read(at), dry_run=doer.dry_run),
    ),
    "seek": WebAction(
        label="Seek",
        warning="Going back handles messages again. Going forward leaves messages out.",
        needs=(*_GROUP, "to"),
        may=("key",),
        asks={"to": "To: earliest, latest, a time in UTC (2026-11-27T09:00), -2h, or of one lane an offset"},
        fixed=_fixed,
        typed="group",
        destroys=lambda planned: planned.passed > 0,
        verb=lambda admin, at, doer: admin.seek(**_read(at), dry_run=doer.dry_run),
    ),
    "redrive": WebAction(
        label="Redrive",
        warning="The messages go back into the log, for this group alone.",
        needs=_GROUP,
        may=("id", "letters", "rate"),
        asks={"rate": "Messages a second (empty: no limit)"},
        long=True,
        verb=lambda admin, at, doer: admin.redrive(**_letters(at), progress=doer.progress, dry_run=doer.dry_run),
    ),
    "delete-letters": WebAction(
        label="Delete dead letters",
        warning="The messages are lost for good. This cannot be taken back.",
        needs=_GROUP,
        may=("id", "letters"),
        long=True,
        typed="group",
        verb=lambda admin, at, doer: admin.delete_dead_letters(
            **_letters(at), progress=doer.progress, dry_run=doer.dry_run
        ),
    ),
    "delete-group": WebAction(
        label="Delete the group",
        warning="Its offsets in the topic are forgotten, and messages that only it kept are collected. "
        "This cannot be taken back.",
        needs=_GROUP,
        typed="group",
        verb=lambda admin, at, doer: admin.delete_group(**_read(at), dry_run=doer.dry_run),
    ),
    "pause-schedule": WebAction(
        label="Pause the schedule",
        warning="It publishes nothing until it is resumed. Times that pass meanwhile are skipped.",
        needs=("name",),
        verb=lambda admin, at, doer: admin.pause_schedule(
            **_read(at), by=doer.by[:BY_MAX], reason=doer.why, dry_run=doer.dry_run
        ),
    ),
    "resume-schedule": WebAction(
        label="Resume the schedule",
        warning="It publishes again, from its next time on.",
        needs=("name",),
        verb=lambda admin, at, doer: admin.resume_schedule(**_read(at), dry_run=doer.dry_run),
    ),
    "run-schedule": WebAction(
        label="Run the schedule now",
        warning="One message is published at once, besides those of its times.",
        needs=("name",),
        may=("token",),
        fixed=_with_token,
        verb=lambda admin, at, doer: admin.run_schedule(**_read(at), dry_run=doer.dry_run),
    ),
    "remove-schedule": WebAction(
        label="Remove the schedule",
        warning="It publishes nothing more. What it has published stays. A process that declares it creates it again.",
        needs=("name",),
        typed="name",
        verb=lambda admin, at, doer: admin.remove_schedule(**_read(at), dry_run=doer.dry_run),
    ),
}
"""By the last part of its address."""


def button(name: str, text: str = "", /, **fields: object) -> WebButton:
    """Return the button that leads to the preview of an action."""
    action = ACTIONS[name]
    return WebButton(text=text or action.label, href=link(f"act/{name}", **fields), red=action.red)
