"""The pages of the documentation: each page's examples, executed in their order as one program on a real server.

Examples that need more than that have tests of their own: `support.readme.Example`.
"""

from pathlib import Path
from typing import Any

import pytest

import lanelog
from support.readme import ROOT, programs
from support.sql import rows

PROGRAMS = programs()
PULLS = ROOT / "docs/howto/payloads.md"
"""Its examples pull four times until nothing comes."""
PROGRAM = pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.thorough] * (page == PULLS)) for page in PROGRAMS],
    ids=lambda page: str(page.relative_to(ROOT)),
)


@PROGRAM
def test_examples_of_a_page(
    page: Path,
    lanelog_client: lanelog.Client,
    lanelog_url: str,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The examples run, with `lanelog` and a `client`; a block of text after an example is what it prints."""
    monkeypatch.setenv("LANELOG_URL", lanelog_url)
    namespace = {"lanelog": lanelog, "client": lanelog_client, "__name__": "docs"}
    for block in PROGRAMS[page]:
        if block.language == "sql":
            rows(raw, block.text)
            continue
        # The line numbers of the page, for whoever reads the traceback.
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)  # noqa: S102 - the pages are ours
        if block.output is not None:
            assert capsys.readouterr().out == block.output
