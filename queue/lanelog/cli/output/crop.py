"""Text cropped in its middle to a width in terminal cells. A wide character takes two cells.

Owns this measure. Knows no column and no colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

ELLIPSIS = "…"


def crop(text: str, width: int, share: float = 0.5) -> str:
    """Return `text` in at most `width` cells: its beginning and its end, with `…` for the missing middle.

    `share`: the part of the room that the beginning gets.
    """
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[: max(0, width)]
    left = min(width - 1, int(width * share))
    head, tail = _beginning(text, left), _end(text, width - 1 - left)
    # Characters may take more cells together than alone. So the end loses characters until it fits.
    while tail and cell_len(f"{head}{ELLIPSIS}{tail}") > width:
        tail = tail[1:]
    return f"{head}{ELLIPSIS}{tail}"


def cropped(texts: Sequence[str], width: int) -> list[str]:
    """Crop all texts of a column at the same position: in the middle, or elsewhere if more of them differ then."""
    tries = ([crop(text, width, share) for text in texts] for share in (0.5, 0.75, 0.25))
    return max(tries, key=lambda column: len(set(column)))


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` with blanks up to `width` cells; unchanged if it is as wide already."""
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
