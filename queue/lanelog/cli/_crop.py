"""Text cropped to a width that a terminal measures: in its middle, by cells, of which a wide character takes two.

Owns only this measure; knows no column and no colour. Called by `_table` and by what writes lines of its own.
"""

from __future__ import annotations

from rich.cells import cell_len

ELLIPSIS = "…"


def crop(text: str, width: int) -> str:
    """`text` in at most `width` cells: its beginning and its end, with `…` between them where something is missing."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[: max(0, width)]
    left = width // 2
    head, tail = _beginning(text, left), _end(text, width - 1 - left)
    # Characters may take more cells together than alone. What is still too wide loses its end.
    while tail and cell_len(f"{head}{ELLIPSIS}{tail}") > width:
        tail = tail[1:]
    return f"{head}{ELLIPSIS}{tail}"


def padded(text: str, width: int, *, right: bool = False) -> str:
    """`text` with blanks up to `width` cells; unchanged if it is as wide as that."""
    blanks = " " * max(0, width - cell_len(text))
    return blanks + text if right else text + blanks


def _beginning(text: str, width: int) -> str:
    count = min(len(text), width)
    while count and cell_len(text[:count]) > width:
        count -= 1
    return text[:count]


def _end(text: str, width: int) -> str:
    count = min(len(text), width)
    while count and cell_len(text[-count:]) > width:
        count -= 1
    return text[len(text) - count :]
