"""The documentation as a reader has it: built, and looked at in a browser, wide and as narrow as a telephone."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.browser import browser
from support.readme import ROOT

pytestmark = pytest.mark.thorough

WIDTHS = (1280, 390)

OVERFLOWS = """
(() => {
  const width = document.documentElement.clientWidth;
  const scrolls = element => element !== document.body &&
    (["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter(element => element.getBoundingClientRect().right > width + 1 && !scrolls(element))
    .map(element => `${element.tagName} ${element.textContent.slice(0, 60)}`);
})()
"""
"""What of a page leaves the window, though it does not scroll within itself."""


def test_every_page_fits_and_asks_nobody(tmp_path: Path) -> None:
    """Built without a warning; no page is wider than its window, loads anything from elsewhere, or has an error."""
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "--builder", "html"]
    subprocess.run(
        [*build, "--doctree-dir", str(tmp_path / "doctrees"), "docs", str(tmp_path / "html")],
        cwd=ROOT,
        check=True,
    )
    wrong: list[tuple[str, int, object]] = []
    pages = sorted((tmp_path / "html").rglob("*.html"))
    assert len(pages) > 50
    with browser() as page:
        for path in pages:
            name = str(path.relative_to(tmp_path / "html"))
            for width in WIDTHS:
                page.show_as(width=width, dark=width == min(WIDTHS))
                page.open(path)
                elsewhere = [url for url in page.requested if not url.startswith(("file:", "data:"))]
                wrong += [(name, width, found) for found in (*page.ask(OVERFLOWS), *elsewhere, *page.problems)]
                page.problems.clear()
    assert wrong == []
