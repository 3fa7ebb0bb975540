"""Problems as people read them: what, where, since when, and the command that repairs it.

Lanes that fail alike are one entry, and so are lanes that one connection holds.

Owns these lines and their colours. Judges nothing (`admin.operate.problems` does).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from lanelog._base.text import age, plural, shown
from lanelog._views.column import Tone
from lanelog._views.sentences import nothing_stuck
from lanelog.admin.operate.problem import HEAD_LOCKED, OWNER_GONE, Rank, command
from lanelog.cli.output.answer import Line
from lanelog.cli.output.crop import crop

if TYPE_CHECKING:
    from lanelog.admin import Problem

_VARIES: Final = re.compile(r"[0-9a-f]{8,}|(\d+[a-z]*)+")
"""Numbers, durations and ids: lanes that fail alike differ in these."""
_NAMED: Final = 3
"""The most lanes of one entry that are named."""
_LINE: Final = 78
"""Cells of the line of a topic with dead letters."""
_TOPIC: Final = 30
_TONES: Final = {Rank.PAUSED: Tone.WARN, Rank.BEHIND: Tone.WARN}


def entries(problems: Sequence[Problem], *, most: int, complete: bool = True, waiting: int = 0) -> list[list[Line]]:
    """Return the lines of each entry, in order.

    Problems of one group that are alike stand where the first of them is. Dead letters of several topics are one entry,
    with a line for each topic.

    Args:
        problems: The worst first.
        most: The number of lanes of a group that were read. If all are alike, there may be more.
        complete: Whether all was read.
        waiting: The number of messages that wait for their next attempt.
    """
    if not problems:
        return [[Text(nothing_stuck(waiting, complete=complete), style=Tone.GOOD if complete else Tone.WARN)]]
    letters = [each for each in problems if each.rank is Rank.DEAD_LETTERS]
    if len({each.topic for each in letters}) == 1:
        letters = []
    others = [each for each in problems if each not in letters]
    found = [_lines(alike, most) for alike in _alike(others)]
    return [*found, _letters(letters)] if letters else found


def _letters(problems: Sequence[Problem]) -> list[Line]:
    topics: dict[str, list[Problem]] = {}
    for each in problems:
        topics.setdefault(each.topic, []).append(each)
    lines: list[Line] = [Text.assemble((problems[0].what.upper(), Tone.BAD), f"  {plural(len(topics), 'topic')}")]
    for topic, found in topics.items():
        more = f", and {plural(len(found) - 1, 'reason')} more" if len(found) > 1 else ""
        room = _LINE - len(more)
        lines.append(Text(crop(f"    {shown(topic, _TOPIC)}: {found[0].detail.partition(';')[0]}", room, 0.8) + more))
    return [*lines, f"    $ {command('dlq list', problems[0].topic, options=['--reasons'])}"]


def _alike(problems: Iterable[Problem]) -> list[list[Problem]]:
    found: dict[object, list[Problem]] = {}
    for number, each in enumerate(problems):
        cause = each.cause or each.detail
        # The number of a connection is what its lanes have in common.
        same = (each.what, each.topic, each.group, cause if each.what == HEAD_LOCKED else _VARIES.sub("#", cause))
        found.setdefault(number if each.key is None else same, []).append(each)
    return list(found.values())


def _lines(alike: Sequence[Problem], most: int) -> list[Line]:
    first = alike[0]
    what, rest = first.what.upper(), first.lines()
    if len(alike) > 1:
        rest = _together(alike, most)
    tone = _TONES.get(first.rank, Tone.BAD)
    head, sentence, *pasted = rest  # a stack and a command are left as they are
    return [Text.assemble((what, tone), head.removeprefix(what)), Text(sentence), *pasted]


def _together(alike: Sequence[Problem], most: int) -> list[str]:
    first = alike[0]
    lanes = plural(len(alike), "lane") + (" or more" if len(alike) >= most else "")
    line = f"{first.what.upper()}  {shown(first.topic)} {shown(first.group)} {lanes}"
    if first.since is not None:
        line += f", the first since {min(each.since for each in alike if each.since is not None)}"
    elif first.lasted is not None:
        line += f", the longest for {age(max(each.lasted or 0 for each in alike))}"
    elif first.seconds is not None:
        line += f", the oldest waits {age(max(each.seconds or 0 for each in alike))}"
    keys = ", ".join(shown(each.key, 40) for each in alike[:_NAMED])
    more = ", …" if len(alike) > _NAMED else ""
    same = {each.owner if each.what == OWNER_GONE else each.command for each in alike}
    remedy, to_run = first.remedy, first.command
    if len(same) > 1 and first.command_for_all is not None:
        to_run = first.command_for_all
    elif len(same) > 1:
        remedy, to_run = "which they are", command("lanes", first.topic, first.group, options=["--by", "age"])
    return [line, f"    lanes {keys}{more}; the first: {first.detail}; {remedy}:", f"    $ {to_run}"]
