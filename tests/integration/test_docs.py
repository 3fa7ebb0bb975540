"""The pages under docs/: each page's Python examples, executed in their order as one program on a real server."""

import re
from pathlib import Path

import pytest

import lanelog

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n?```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_examples_of_a_page(
    page: Path,
    lanelog_client: lanelog.Client,
    lanelog_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They run, with `lanelog` and a `client`; where a block of text follows an example, that is what it prints."""
    monkeypatch.setenv("LANELOG_URL", lanelog_url)
    text = page.read_text()
    namespace = {"lanelog": lanelog, "client": lanelog_client, "__name__": "docs"}
    for block in BLOCK.finditer(text):
        line = text[: block.start("code")].count("\n")
        # The line numbers of the page, for whoever reads the traceback.
        exec(compile("\n" * line + block["code"], str(page), "exec"), namespace)  # noqa: S102 - the pages are ours
        if block["output"] is not None:
            assert capsys.readouterr().out == block["output"]
