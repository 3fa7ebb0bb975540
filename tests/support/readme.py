"""The README and the pages of docs/, taken apart: fenced blocks and tables, for the tests that check them."""

import re
from enum import Enum
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs/_build"
DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not path.is_relative_to(BUILT)]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
TEXT = "\n".join(page.read_text() for page in PAGES)
README = (ROOT / "README.md").read_text()


class Example(Enum):
    """Every Python example that a test of its own executes: its page, and a text that only it contains there.

    All other examples of a page are executed in their order by test_docs.
    """

    QUICK_START = ("README.md", "client.run()")
    TRANSACTION = ("README.md", "UPDATE orders SET state")
    EXACTLY_ONCE = ("README.md", "message.transaction()")
    FIRST = ("docs/tutorial/first-ten-minutes.md", '"hello", "readers"')
    PUBLISH = ("docs/howto/publish.md", "publish_many")
    OUTBOX = ("docs/howto/publish.md", "pymysql.connect")
    DELAYED = ("docs/howto/delays-and-schedules.md", "cancel_scheduled")
    RECURRING = ("docs/howto/delays-and-schedules.md", "client.schedule(")
    PROCESS_ONE = ("docs/howto/workers.md", "signal.signal(")
    SQLALCHEMY_ACK = ("docs/howto/orm.md", "session(message, Session)")
    DJANGO_JOBS = ("docs/howto/orm.md", "@client.subscriber")
    DJANGO_TASKS = ("docs/howto/orm.md", "@task(")
    DJANGO_ACK = ("docs/howto/orm.md", 'bills=F("bills")')
    RELAY = ("docs/howto/relay.md", "Idempotency-Key")
    SQLALCHEMY_PUBLISH = ("docs/howto/orm.md", "session.begin()")
    DJANGO_PUBLISH = ("docs/howto/orm.md", "connection=connection")
    DJANGO_MIDDLEWARE = ("docs/howto/orm.md", 'update(state="billed")')
    SQLALCHEMY_MIDDLEWARE = ("docs/howto/orm.md", "remove_session")
    ALEMBIC_REVISION = ("docs/howto/upgrade.md", "def upgrade()")
    ALEMBIC_ENV = ("docs/howto/upgrade.md", "context.configure")
    HANDLER = ("docs/howto/handle.md", "def handle(")
    MIDDLEWARE = ("docs/howto/handle.md", "call_next")
    BATCH = ("docs/howto/handle.md", "messages.transaction()")
    RETRY = ("docs/howto/retries.md", "stop_after_delay")
    DEAD_LETTERS = ("docs/howto/dead-letters.md", "message.dead_letter")
    PULL = ("docs/howto/pull.md", "for message in deliveries")
    FLASK = ("docs/howto/web.md", "merge/<repo>")
    FASTAPI = ("docs/howto/web.md", "merge_async")
    JOBS = ("docs/howto/web.md", "def handle(")
    GUNICORN = ("docs/howto/web.md", "def post_fork(")
    LIFESPAN = ("docs/howto/web.md", "asynccontextmanager")
    FLASK_SERVER = ("docs/howto/web.md", "use_reloader")
    UWSGI = ("docs/howto/web.md", "uwsgi.atexit")
    CELERY = ("docs/howto/web.md", "worker_process_init")
    PYTEST = ("docs/howto/testing.md", "def test_shout(")
    SPARK = ("docs/spark/source.md", "spark.readStream")


@frozen
class Block:
    """A fenced block, its page and the number of its first line; `output` is the block of text right behind it."""

    page: Path
    language: str
    text: str
    line: int
    output: str | None

    @property
    def place(self) -> str:
        """Where it stands, for tracebacks."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


FENCED = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n?```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(page, m[1], m[2], text[: m.start()].count("\n") + 2, m[3]) for m in FENCED.finditer(text)]


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def blocks(language: str) -> list[Block]:
    """All fenced blocks in a language, of all pages."""
    return [block for block in BLOCKS if block.language == language]


def shell_blocks(page: str) -> list[list[str]]:
    """The commands of each shell block of a page, without their comments."""
    found = [block for block in blocks("shell") if block.page == ROOT / page]
    return [[re.sub(r"\s+# .*$", "", line) for line in block.text.splitlines()] for block in found]


def example(which: Example) -> Block:
    """The one Python block of the example's page that contains its text."""
    page, text = which.value
    (block,) = (block for block in blocks("python") if block.page == ROOT / page and text in block.text)
    return block


def programs() -> dict[Path, list[Block]]:
    """By page, the examples that no test of their own executes, with the SQL between them."""
    claimed = {example(which) for which in Example}
    pages = {block.page for block in blocks("python") if block not in claimed}
    return {
        page: [b for b in BLOCKS if b.page == page and b.language in {"python", "sql"} and b not in claimed]
        for page in sorted(pages)
    }


def sql(containing: str) -> str:
    """The one SQL block that contains a text."""
    (block,) = (block for block in blocks("sql") if containing in block.text)
    return block.text


def table(*heads: str) -> list[list[str]]:
    """The rows of every table with these column heads, on any page, as cells."""
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
    assert rows, f"no page has a table {head}"
    return rows
