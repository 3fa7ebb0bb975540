"""The report in a browser: what people see, in light and dark, on a phone and on paper."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lanelog.spark.report.page import render
from support.browser import Page, browser
from support.reports import HOSTILE, ODD, full

pytestmark = pytest.mark.thorough

FETCHED = (
    "<!doctype html><title>control</title><img src='http://127.0.0.1:9/x.png'><script>document.title = 'ran'</script>"
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser with one page."""
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a log in which everything has a hostile name."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(*full(HOSTILE)), encoding="utf-8")
    return path


def test_nothing_is_loaded_from_outside(page: Page, report: Path, tmp_path: Path) -> None:
    """One request, for the file itself; nothing of the log runs. A page that does fetch and run is seen to do so."""
    page.open(report)
    assert page.requested == [report.absolute().as_uri()]
    assert page.ask("document.title").startswith("lanelog: Read: 3 topics")
    assert page.ask("document.querySelectorAll('script, img, iframe, link').length") == 0
    assert page.problems == []
    control = tmp_path / "control.html"
    control.write_text(FETCHED)
    page.open(control)
    assert "http://127.0.0.1:9/x.png" in page.requested
    assert page.ask("document.title") == "ran"


def test_tables_and_plots_are_there(page: Page, tmp_path: Path) -> None:
    """Every cell stands under a head; every plot has a size and a name."""
    path = tmp_path / "report.html"
    path.write_text(render(*full()), encoding="utf-8")
    page.show_as(width=1100)
    page.open(path)
    assert page.ask("document.querySelectorAll('table').length") == 8
    assert page.ask(
        "[...document.querySelectorAll('tr')].every(r => r.cells.length == r.closest('table').rows[0].cells.length)"
    )
    sizes = page.ask("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)")
    assert len(sizes) == 9
    assert min(sizes) > 150
    assert page.ask("[...document.querySelectorAll('figure')].every(f => f.getAttribute('aria-label').length > 10)")
    assert page.ask(f"document.body.innerText.includes({ODD!r})")


def test_plots_can_be_read_on_a_phone(page: Page, report: Path) -> None:
    """The text of plots is hardly smaller there than the page's, and not larger than it on a desk."""
    size = (
        "[...document.querySelectorAll('svg text')].map(t => parseFloat(getComputedStyle(t).fontSize)"
        " * t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width)"
    )
    page.open(report)
    for width, smallest, largest in ((390, 9.5, 13), (768, 9.5, 15), (1280, 11, 15)):
        page.show_as(width=width)
        sizes = page.ask(size)
        assert smallest <= min(sizes) <= max(sizes) <= largest, (width, min(sizes), max(sizes))


def test_short_names_are_on_one_line_within_their_card(page: Page, tmp_path: Path) -> None:
    """No lane's name is broken at its hyphen where there is room, and no table leaves its card."""
    path = tmp_path / "report.html"
    path.write_text(render(*full("customer-00014")), encoding="utf-8")
    page.open(path)
    lines = (
        "[...document.querySelectorAll('td.short span')].filter(s => s.innerText.includes('customer-'))"
        ".map(s => Math.round(s.getBoundingClientRect().height / parseFloat(getComputedStyle(s).lineHeight)))"
    )
    out = "[...document.querySelectorAll('table')].filter(t => t.scrollWidth > t.parentElement.clientWidth).length"
    for width in (840, 960, 1100, 1280):
        page.show_as(width=width)
        assert page.ask(out) == 0, width
        if width >= 960:
            assert set(page.ask(lines)) == {1}, width


def test_nothing_stands_out_at_the_side(page: Page, report: Path) -> None:
    """From a small phone to a wide screen, with names without a space in them, nobody scrolls sideways.

    Neither is anything cut off on A4 with its margins, where tables stay tables.
    """
    page.open(report)
    for width in (320, 390, 768, 840, 1100, 1600):
        page.show_as(width=width)
        assert page.ask("document.documentElement.scrollWidth") <= width
    page.show_as(width=688, media="print")
    assert page.ask("document.documentElement.scrollWidth") <= 688
    assert page.ask("getComputedStyle(document.querySelector('tr')).display") == "table-row"


def test_dark_readers_get_a_dark_page(page: Page, report: Path) -> None:
    """Background and writing swap colours, in the plots too; and on paper it is always light."""

    def colours() -> tuple[int, int, int]:
        """How bright the page, the text, and the text of a plot are, 0 to 765."""
        bright = "(c => c.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0))"
        style = "getComputedStyle(document.querySelector('{}')).{}"
        parts = (("body", "backgroundColor"), ("body", "color"), ("svg text", "fill"))
        paper, ink, plot = (page.ask(f"{bright}({style.format(*part)})") for part in parts)
        return paper, ink, plot

    page.open(report)
    page.show_as(width=1100, dark=False)
    paper, ink, plot = colours()
    assert paper > 700
    assert max(ink, plot) < 200
    page.show_as(width=1100, dark=True)
    paper, ink, plot = colours()
    assert paper < 100
    assert min(ink, plot) > 600
    page.show_as(width=780, dark=True, media="print")
    paper, ink, plot = colours()
    assert (paper, ink, plot) == (765, 0, 0)


def test_a_phone_shows_rows_as_lists_with_their_heads(page: Page, report: Path) -> None:
    """There each cell stands under the others, with its head beside it."""
    page.open(report)
    page.show_as(width=390)
    head = "getComputedStyle(document.querySelector('td'), '::before').content"
    assert page.ask(head) == '"Topic"'
    assert page.ask("getComputedStyle(document.querySelector('tr')).display") == "block"
    page.show_as(width=1100)
    assert page.ask(head) == "none"
