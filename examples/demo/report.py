"""The result of a run: the text printed at the end, and whether the run is a success.

Never measures anything: it gets the numbers.
"""

from __future__ import annotations

from typing import Final

from attrs import field, frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.chaos import Takeover
from demo.tables import AuthorRow
from demo.verify import Comparison, Count
from demo.view import print_plain

SHOWN: Final = 5


@frozen(kw_only=True)
class Report:
    """The numbers of a run. Times are seconds; counts are of group `rebuild` unless the name says otherwise."""

    jobs: int
    commits: int
    lanes: int
    seconds: float
    pause: float
    takeover: Takeover | None
    dead_letters: tuple[str, ...]
    count: Count
    counted_by_stats: int
    authors: tuple[AuthorRow, ...] = field(repr=False)
    comparisons: tuple[Comparison, ...]

    @property
    def differences(self) -> list[str]:
        """Paths that differ from git's."""
        return [text for comparison in self.comparisons for text in comparison.differences]

    @property
    def failures(self) -> list[str]:
        """Promises that were not kept."""
        checks = (
            (bool(self.differences), f"{len(self.differences)} paths differ from HEAD"),
            (self.count.missing > 0, f"{self.count.missing} jobs were never applied"),
            (self.count.twice > 0, f"{self.count.twice} jobs were applied more than once"),
            (self.count.out_of_order > 0, f"{self.count.out_of_order} jobs were applied out of order"),
            (self.counted_by_stats != self.jobs, f"group stats counted {self.counted_by_stats} of {self.jobs} jobs"),
            (len(self.dead_letters) != 1, f"{len(self.dead_letters)} dead letters instead of the malformed job alone"),
            (self.takeover is None, "no worker could be killed at work"),
            (
                self.takeover is not None and self.takeover.every is None,
                "the killed worker's lanes did not all move again",
            ),
        )
        return [text for failed, text in checks if failed]

    @property
    def status(self) -> int:
        """The exit status."""
        return 1 if self.failures else 0

    def print(self, console: Console) -> None:
        """Print the table, the failures, and the verdict."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for label, value in self._rows():
            table.add_row(Text(label), Text(value))
        console.print(table)
        for letter in self.dead_letters[:SHOWN]:
            print_plain(console, f"dead letter: {letter}")
        for row in self.authors[:SHOWN]:
            amounts = f"{row.jobs} jobs, {row.files} files written, {row.deletions} deleted, {row.bytes} bytes"
            print_plain(console, f"by {row.author}: {amounts}")
        for text in self.differences[:SHOWN]:
            print_plain(console, f"different: {text}")
        for text in self.failures:
            print_plain(console, f"failed: {text}")
        print_plain(console, f"identical to HEAD: {'no' if self.differences else 'yes'}")

    def _rows(self) -> list[tuple[str, str]]:
        takeover = self.takeover
        files = sum(comparison.files for comparison in self.comparisons)
        size = sum(comparison.bytes for comparison in self.comparisons)
        rows = [
            ("jobs, each handled by two groups", str(self.jobs)),
            ("commits", str(self.commits)),
            ("lanes", str(self.lanes)),
            ("applied exactly once, in order", "yes" if self._exactly_once else "NO"),
            ("redeliveries", str(self.count.redeliveries)),
            ("dead letters", str(len(self.dead_letters))),
            ("jobs per second", f"{self.jobs / self.seconds:.0f}" if self.seconds else "-"),
            ("seconds until the killed worker's lanes moved again", _seconds(takeover.first if takeover else None)),
            ("seconds until every one of them had", _seconds(takeover.every if takeover else None)),
            ("files compared with HEAD", f"{files} ({size} bytes)"),
        ]
        if self.pause:
            rows.insert(7, ("(held back until the kill by, seconds per job)", f"{self.pause:.2f}"))
        return rows

    @property
    def _exactly_once(self) -> bool:
        return not (self.count.missing or self.count.twice or self.count.out_of_order)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
