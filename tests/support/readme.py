"""The README, taken apart: its fenced blocks, its tables and its headings, for the tests that execute and check it."""

import re
from enum import StrEnum
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


class Example(StrEnum):
    """Every Python example, by a text that only it contains. Each is executed by a test."""

    FIRST = '"hello", "readers"'
    QUICK_START = "client.run()"
    PUBLISH = "publish_many"
    TRANSACTION = "UPDATE orders SET state"
    DELAYED = "cancel_scheduled"
    RECURRING = "client.schedule("
    HANDLER = "def handle("
    RETRY = "stop_after_delay"
    EXACTLY_ONCE = "message.transaction()"
    DEAD_LETTERS = "message.dead_letter"
    PULL = "for message in deliveries"
    MIDDLEWARE = "call_next"
    FLASK = "from flask"
    FASTAPI = "from fastapi"
    GUNICORN = "def post_fork("
    OUTBOX = "pymysql.connect"
    PYTEST = "def test_shout("
    SPARK = "spark.readStream"


@frozen
class Block:
    """A fenced block and the number of its first line."""

    language: str
    text: str
    line: int


def blocks(language: str) -> list[Block]:
    """All fenced blocks in a language."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], TEXT[: m.start()].count("\n") + 2) for m in found if m[1] == language]


def example(which: Example) -> Block:
    """The one Python block that contains the example's text."""
    (block,) = (block for block in blocks("python") if which in block.text)
    return block


def sql(containing: str) -> str:
    """The one SQL block that contains a text."""
    (block,) = (block for block in blocks("sql") if containing in block.text)
    return block.text


def table(*heads: str) -> list[list[str]]:
    """The rows of every table with these column heads, as cells."""
    head = "| " + " | ".join(heads) + " |"
    rows: list[list[str]] = []
    lines = TEXT.splitlines()
    for number, line in enumerate(lines):
        if line != head:
            continue
        for row in lines[number + 2 :]:
            if not row.startswith("|"):
                break
            rows.append([cell.strip() for cell in row.strip("|").split(" | ")])
    assert rows, f"the README has no table {head}"
    return rows
