"""A payload as people read it: text, JSON or hex, cut, and never by itself.

Owns these forms. The page asks for one of them; without it no payload leaves the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from lanelog._base.text import plural
from lanelog.admin import MessageInfo
from lanelog.errors import ConfigurationError, LanelogError

FORMS: Final = ("text", "json", "hex")
MOST: Final = 65_536
"""Bytes that are shown."""
_ROW: Final = 16

Mask = Callable[[MessageInfo], bytes]
"""Returns the payload that a page may show of a message. `topic` of a dead letter is that of the dead letters."""


def as_read(message: MessageInfo, form: str, mask: Mask | None) -> str:
    """Return the payload of a message in one of the forms."""
    if form not in FORMS:
        raise ConfigurationError(f"a payload is shown as {', '.join(FORMS)}, not as {form!r}")
    payload = message.payload if mask is None else masked(message, mask)
    cut = payload[:MOST]
    rest = f"\n… {plural(len(payload) - MOST, 'more byte')}" if len(payload) > MOST else ""
    if form == "hex":
        rows = (cut[at : at + _ROW] for at in range(0, len(cut), _ROW))
        return "\n".join(f"{at * _ROW:08x}  {row.hex(' ')}" for at, row in enumerate(rows)) + rest
    if form == "json" and not rest:
        try:
            laid_out = json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
            return _text(laid_out.encode(errors="backslashreplace"))
        except (ValueError, RecursionError):
            return "This is no JSON.\n\n" + _text(cut)
    return _text(cut) + rest


def masked(message: MessageInfo, mask: Mask) -> bytes:
    """Return what may be seen of a payload."""
    shown: object = mask(message)  # the application's code
    if not isinstance(shown, bytes):
        raise LanelogError(f"the mask returned a {type(shown).__name__} instead of bytes, so no payload is shown")
    return shown


def _text(payload: bytes) -> str:
    """Return bytes as text. What is no UTF-8, and what would change the direction of reading, is escaped."""
    text = payload.decode(errors="backslashreplace")
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
