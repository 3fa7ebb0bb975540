"""The documentation as a reader has it: built, and looked at in a browser, wide and as narrow as a telephone."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.browser import browser
from support.readme import ROOT

pytestmark = [pytest.mark.one_family("mariadb"), pytest.mark.thorough]

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


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built without a warning."""
    place = tmp_path_factory.mktemp("docs")
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "--builder", "html"]
    subprocess.run(
        [*build, "--doctree-dir", str(place / "doctrees"), "docs", str(place / "html")], cwd=ROOT, check=True
    )
    return place / "html"


@pytest.mark.timeout(300)  # all of the documentation is built, beside other tests
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_page_fits_and_asks_nobody(html: Path, width: int, dark: bool, half: int) -> None:
    """No page is wider than its window, loads anything from elsewhere, or has an error."""
    wrong: list[tuple[str, object]] = []
    pages = sorted(html.rglob("*.html"))
    assert len(pages) > 50
    with browser() as page:
        page.show_as(width=width, dark=dark)
        for path in pages[half::2]:
            page.open(path)
            elsewhere = [url for url in page.requested if not url.startswith(("file:", "data:"))]
            wrong += [(path.name, found) for found in (*page.ask(OVERFLOWS), *elsewhere, *page.problems)]
            page.problems.clear()
    assert wrong == []
