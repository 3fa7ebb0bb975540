"""What README and docs/ say, against the code: options, tables, files, commands, names, tests. Others execute it."""

import ast
import io
import itertools
import pkgutil
import re
import shlex
import sys
import tokenize
import tomllib
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree as ET

import attrs
import click
import pytest

import lanelog
from lanelog._database.server import server_facts
from lanelog.admin.operate import hung, problem, problems, writes
from lanelog.cli._main import cli
from lanelog.config import ConnectConfig
from support.cli import all_verbs
from support.readme import PAGES, README, ROOT, TEXT, Example, blocks, example, programs, shell_blocks, table

PACKAGE = ROOT / "queue/lanelog"
SOURCE = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
SHELL = "\n".join(block.text for block in blocks("shell"))
LINES = [line for line in SHELL.splitlines() if line.startswith("lanelog ") and "dev-server" not in line]
CODE = SHELL + "\n".join(re.findall(r"`([^`\n]+)`", TEXT))
WRITTEN = [page for page in PAGES if not page.read_text().startswith("```{include}")]
"""The pages that do not include another one."""
DROPPED = re.compile(
    r"\b(looks?|looked|looking|mend(s|ed|ing)?|guilty|innocent|past|tells?|told|telling|hears?|heard|hearing|ow(e|es|ed|ing)"
    r"|steer(s|ed|ing)?|worth|turn(s|ed|ing)?|verbs?|places?|placed|placing"
    r"|(?<!command[ -])(?<!code )(?<!\d )lines?)\b",
    re.IGNORECASE,
)
"""Words that a newcomer had to translate: a look is a read, a query or a poll, to mend is to repair, a place is an
offset or a slot, a line is a queue, a verb is a command. Exceptions are the command line, lines of code, and lines of
text with their number."""
DROPPED_IN_CODE = re.compile(
    r"\b(look(?!-up|: )s?(?! up)|looked(?! up)|looking|mend(s|ed|ing)?|guilty|innocent|past|tells?|told|telling"
    r"|hears?|heard|hearing|ow(e|es|ed|ing)|worth|places?|placed|placing)\b",
    re.IGNORECASE,
)
"""The same in comments and docstrings. A look-up is a query by exact key. A line is a line of text, a verb one of the
command line, and a loop takes turns."""
ROOMS = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")})
NO_SUBJECT = re.compile(r"(?:^|[.:;|*] )Who(?:ever)? [^.;:|?]*[.;:|]")
"""A sentence that begins so has no noun: "Who reads it" is a group, a member or a user. Questions may begin so."""


def defaults(config: type) -> dict[str, object]:
    """The default of every option, a factory's product included."""
    return {
        field.name: field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
        for field in attrs.fields(config)
    }


def shown(cell: str) -> object:
    """The value of a default as the page shows it."""
    return eval(cell.strip("`"), vars(lanelog).copy())  # noqa: S307 - the pages are ours


def test_every_example_is_executed_by_a_test() -> None:
    """Each Python block runs with its page, or is known under one name that a test with a database or Spark uses."""
    run = {block for page in programs().values() for block in page if block.language == "python"}
    assert len({example(which) for which in Example}) == len(Example)
    assert run | {example(which) for which in Example} == {*blocks("python")}
    tests = "".join(
        path.read_text() for tier in ("integration", "spark") for path in (ROOT / "tests" / tier).rglob("*.py")
    )
    assert [which.name for which in Example if f"Example.{which.name}" not in tests] == []


def test_the_readme_is_short() -> None:
    """The README says what lanelog is, for whom, how to begin, and what it promises; all else is in docs/."""
    assert len(README.splitlines()) <= 150


def test_the_readme_has_two_pictures() -> None:
    """As the start page of the documentation, the README shows what a log is made of, and what an operator sees."""
    pictures = re.findall(r"!\[.{20,}\]\((.+)\)$", README, re.MULTILINE)
    assert [Path(picture).suffix for picture in pictures] == [".svg", ".png"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_newcomer_need_not_translate(page: Path) -> None:
    """No private word stands in a sentence. Code, names in code, and the targets of links are no sentences."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = " ".join(re.sub(r"`[^`]*`|\]\([^)\s]*\)", "", text).split())
    assert text
    found = [*DROPPED.finditer(text), *NO_SUBJECT.finditer(text)]
    assert [text[max(0, m.start() - 30) : m.end() + 30] for m in found] == []


@pytest.mark.parametrize("name", ROOMS)
def test_a_reader_of_the_code_need_not_translate(name: str) -> None:
    """No private word stands in a comment or docstring. Names in code are no sentences."""
    found = []
    for path in sorted((PACKAGE / name).rglob("*.py")) or [PACKAGE / name]:
        source = path.read_text()
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
        sentences = [node.value.value for node in nodes if isinstance(node.value, ast.Constant)]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        sentences += [token.string for token in tokens if token.type == tokenize.COMMENT]
        texts = [" ".join(re.sub(r"`[^`]*`", "", str(each)).split()) for each in sentences]
        found += [(path.name, text) for text in texts if DROPPED_IN_CODE.search(text)]
    assert found == []


def test_the_docstring_of_a_test_names_its_subject() -> None:
    """A docstring is read beside others, in a list: it begins with what it is about, not with "It" or "They"."""
    tests = [
        (path.name, node.name, ast.get_docstring(node) or "")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(tests) > 2000
    assert [
        each for each in tests if re.match(r"(It|They|He|She|Its|Their|Both|This|That|These|Those)\b", each[2])
    ] == []


def test_the_readme_begins_with_the_two_commands_that_ci_begins_with() -> None:
    """`make demo` and `make test`, one a line, before any other command of the README, and of `.ci/run`."""
    first, *_ = shell_blocks("README.md")
    phases = re.findall(r'^phase "[^"]+" (.*)$', (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert first == phases[:2] == ["make demo", "make test"]


def test_the_packages_that_the_user_named_are_required() -> None:
    """Five come with lanelog, those of tests with its extra for tests, Spark with its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}

    extras = project["optional-dependencies"]
    assert {"PyMySQL", "DBUtils", "attrs", "tenacity", "structlog"} <= names(project["dependencies"])
    assert {"pytest", "testcontainers"} <= names(extras["testing"])
    assert "pyspark" in names(extras["spark"])


def test_the_readme_counts_the_tables() -> None:
    """The README says how many tables come into the user's database."""
    words = {11: "eleven", 12: "twelve", 13: "thirteen"}
    assert f"{words[len([*(ROOT / 'schema').glob('*.sql')])]} tables" in README


def test_the_map_for_contributors_leads_somewhere() -> None:
    """Every file and folder that CONTRIBUTING names is there, from the root or from the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w.*]+\.py)?)`", text)
    assert len(named) > 25
    assert [path for path in named if not [*ROOT.glob(path), *PACKAGE.glob(path)]] == []


def test_the_routes_for_contributors_go_by_functions_that_exist() -> None:
    """Each step of the route of a message, and of a seek, names a module and a function or method that is there.

    So does each duty in the table of where things are decided.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text()
    step = re.compile(r"`([\w/]+\.py)` `(?:(\w+)\.)?(\w+)`")
    decided = table("It happens", "Here")
    assert len(decided) >= 14
    assert [duty for duty, where in decided if not step.search(where)] == []
    steps = step.findall(text)
    assert len(steps) >= 45
    for path, owner, name in steps:
        body: list[ast.stmt] = ast.parse((PACKAGE / path).read_text()).body
        if owner:
            (body,) = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
        assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}, (path, owner, name)


def test_every_promise_has_tests_that_exist() -> None:
    """Each of P1 to P9 is in the README and in the evidence, there with the tests that pin it."""
    promises = [f"P{number}" for number in range(1, 10)]
    assert re.findall(r"^\| (P\d) \|", README, re.MULTILINE) == promises
    evidence = (ROOT / "docs/evidence/promises.md").read_text()
    sections = dict(re.findall(r"^## (P\d): .*?\n(.*?)(?=^## )", evidence, re.MULTILINE | re.DOTALL))
    assert [*sections] == promises
    for section in sections.values():
        named = re.findall(r"^\* .*: `([\w/]+\.py)` `(test_\w+)`$", section, re.MULTILINE)
        assert len(named) >= 3
        for path, test in named:
            parsed = ast.parse((ROOT / "tests" / path).read_text())
            assert test in {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}, (path, test)


def test_the_glossary_has_the_words_that_pages_use_without_explaining_them() -> None:
    """In the order of the alphabet, each once."""
    text = (ROOT / "docs/reference/glossary.md").read_text()
    terms = re.findall(r"^([a-z][^\n]*)\n: ", text, re.MULTILINE)
    assert terms == sorted({*terms})
    words = {word for term in terms for word in term.split(", ")}
    assert {"dead letter", "epoch", "fence", "floor", "group", "head", "lane", "lease", "owner"} <= words
    assert {"abandon", "offset", "redrive", "retention", "run mark", "seek", "settle", "watermark"} <= words
    assert {"authority", "expire", "flush", "hint", "history", "incarnation", "pause", "quarantined"} <= words
    assert {"release", "run", "schedule", "skip", "term"} <= words


def test_examples_are_small() -> None:
    """Twenty-five lines are enough to see it work, and nobody scrolls an example sideways."""
    assert len(example(Example.QUICK_START).text.splitlines()) <= 25
    assert [
        line
        for kind in ("python", "sql", "shell", "text", "ini")
        for block in blocks(kind)
        for line in block.text.splitlines()
        if len(line) > 120
    ] == []


def test_the_options_of_subscribe_are_listed_with_their_defaults() -> None:
    """The second table of options is the fields of SubscriptionConfig, in their order."""
    from lanelog._base import connection_options

    real = defaults(lanelog.SubscriptionConfig)
    rows = table("Option", "Default", "Meaning")[len(connection_options._OPTIONS) :]
    assert [row[0] for row in rows] == [f"`{name}`" for name in real]
    for name, default, _ in rows:
        option = name.strip("`")
        if option == "name":
            assert default == "host and process"
            assert re.fullmatch(r".+-\d+", lanelog.SubscriptionConfig().name)
        elif option == "retry":
            assert isinstance(real[option], type(shown(default)))
        else:
            assert shown(default) == real[option], option


def test_the_options_of_connect_are_listed_with_their_defaults() -> None:
    """The first table of options is what connect() takes; the URL's parameters stand above it."""
    from lanelog._base import connection_options

    real = defaults(ConnectConfig)
    rows = table("Option", "Default", "Meaning")[: len(connection_options._OPTIONS)]
    assert [row[0] for row in rows] == [f"`{name}`" for name in connection_options._OPTIONS]
    assert {row[0].strip("`"): shown(row[1]) for row in rows} == {
        name: real[name] for name in connection_options._OPTIONS
    }
    known = {*real, *defaults(lanelog.SubscriptionConfig)}
    assert {row[0].strip("`") for row in table("Option", "Default", "Meaning")} <= known  # of both tables
    (parameters,) = re.findall(r"URL parameters: (.*)\.$", TEXT, re.MULTILINE)
    assert parameters == ", ".join(f"`{name}`" for name in connection_options._PARAMETERS)


def spoken(default: object) -> set[str]:
    """The forms in which a sentence may say a default."""
    if isinstance(default, Enum):
        return {f"`{default.value}`", default.name}
    if isinstance(default, float):
        return {f"{default:,.10g} s", f"{default / 86_400:.10g} days"}
    if type(default) is int:
        return {f"{default:,}", f"{default / 2**20:.10g} MiB"}
    return {str(default), f"`{default}`", *(() if default else ("none",))}


@pytest.mark.parametrize("kind", [lanelog.ConnectOptions, lanelog.SubscriptionOptions])
def test_editors_show_the_defaults_of_the_code(kind: type) -> None:
    """The sentence below each option ends with its default; three have more words than a value."""
    real = defaults(ConnectConfig if kind is lanelog.ConnectOptions else lanelog.SubscriptionConfig)
    (body,) = (
        node.body
        for node in ast.parse((PACKAGE / "options.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    sentences = {
        option.target.id: str(text.value.value)
        for option, text in itertools.pairwise(body)
        if isinstance(option, ast.AnnAssign)
        and isinstance(option.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    assert [*sentences] == [*kind.__annotations__]
    said = {option: " ".join(text.split("Default:")[1].split()) for option, text in sentences.items()}
    assert said.pop("name", "host and process id.") == "host and process id."
    assert said.pop("driver", "`pymysql`.").endswith(f"`{defaults(ConnectConfig)['driver']}`.")
    attempts = lanelog.RetryPolicy().max_attempts
    assert said.pop("retry", f"{attempts} attempts").startswith(f"{attempts} attempts")
    for option, text in said.items():
        assert any(re.match(rf"{re.escape(each)}(?![\w,.]\w)", text) for each in spoken(real[option])), option


def test_the_waits_of_the_default_policy_are_documented_as_they_are() -> None:
    """Every page says the same: so many seconds after each attempt, up to a second more, and 60 s at most."""
    policy = lanelog.RetryPolicy(max_attempts=None)
    waits = [policy.decide(attempt=number, since_first=0.0, error=None) or 0.0 for number in (1, 2, 3, 4, 50)]
    assert [least <= wait <= least + 1 for least, wait in zip((1, 2, 4, 8, 60), waits, strict=True)] == [True] * 5
    assert waits[-1] == 60
    doc = " ".join(str(lanelog.RetryPolicy.__doc__).split())
    assert "Default: 1, 2, 4, 8 s and so on, plus up to a second of jitter, 60 s at most." in doc
    assert f"Default: {lanelog.RetryPolicy().max_attempts}, or None if there is a `stop`." in doc
    told = f"{lanelog.RetryPolicy().max_attempts} attempts, with waits of 1, 2, 4 and 8 s"
    editors = " ".join((PACKAGE / "options.py").read_text().split())
    assert [text.count(told) for text in (editors, TEXT)] == [1, 2]


def test_commands_have_the_defaults_of_what_they_call() -> None:
    """An option of `archive` and `analyze` that shows its default, and what the job behind it has."""
    from lanelog.spark.analyze import AnalyzeOptions
    from lanelog.spark.archiving.options import ArchiveOptions

    for name, options in (("archive", ArchiveOptions), ("analyze", AnalyzeOptions)):
        real = defaults(options)
        verb = cli.get_command(click.Context(cli), name)
        shown_there = {each.name: each.default for each in verb.params if getattr(each, "show_default", None)}
        assert len(shown_there) > 1
        assert shown_there == {option: real[str(option)] for option in shown_there}


def test_defaults_in_sentences_are_those_of_the_code() -> None:
    """An option with a value in brackets behind it, `retention` (300 s), on any page."""
    real = {**defaults(lanelog.SubscriptionConfig), **defaults(ConnectConfig)}
    found = re.findall(r"`(\w+)` \((\d[\d.,]*(?: (?:s|MiB|days))?)", TEXT)
    said = [(option, value) for option, value in found if option in real]
    assert len(said) >= 10
    assert [each for each in said if each[1] not in spoken(real[each[0]])] == []


def test_the_table_of_stores_names_what_is_there() -> None:
    """Every table of the schema once, with its file, and the modules whose SQL names it; no store is missing."""
    rows = table("Table", "File", "Store")
    assert sorted(row[1].strip("`") for row in rows) == sorted(
        f"schema/{p.name}" for p in (ROOT / "schema").glob("*.sql")
    )
    for name, file, stores in rows:
        assert file == f"`schema/{name.strip('`')}.sql`"
        for path in re.findall(r"`([\w/]+\.py)`", stores):
            assert name.strip("`") in (PACKAGE / path).read_text(), f"{path} does not know {name}"
    listed = {path for row in rows for path in re.findall(r"`(_stores/[\w/]+\.py)`", row[2])}
    assert listed == {str(path.relative_to(PACKAGE)) for path in (PACKAGE / "_stores").rglob("[!_]*.py")}


def test_the_states_of_a_message_are_documented_by_columns_that_exist() -> None:
    """Six states, in words of the schema."""
    rows = table("State", "In the database, for a group and lane")
    assert [row[0] for row in rows] == ["pending", "processing", "retryable", "postponed", "completed", "failed"]
    schema = "".join(path.read_text() for path in (ROOT / "schema").glob("*.sql"))
    for row in rows:
        for column in re.findall(r"`(\w+)`", row[1]):
            assert re.search(rf"^\s+{column}\s", schema, re.MULTILINE), column


def test_every_make_target_exists() -> None:
    """Every target that `make help` lists is in CONTRIBUTING, too."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", CODE)) == targets


def test_every_command_exists() -> None:
    """`lanelog something` is a command of the command line, and each of its commands is shown or named."""
    named = set(re.findall(r"(?<![\w/.])lanelog ([a-z][a-z-]*)", CODE))
    assert named
    assert named <= set(all_verbs())
    assert {words[1] for words in map(str.split, LINES)} | {"resume", "dev-server", "migrate"} == {*all_verbs()}


@pytest.mark.parametrize("line", [line for line in LINES if "--file" not in line])
def test_every_command_line_is_well_formed(line: str) -> None:
    """Click takes its arguments and options: they exist and are of the right kind."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="lanelog")
    while isinstance(command, click.Group):
        command = (all_verbs() if command is cli else command.commands)[words.pop(0)]
    assert command.make_context(command.name, words, parent=context).command is not cli


def test_the_runbook_has_everything_that_status_says() -> None:
    """Each kind of problem once, with verbs that exist."""
    rows = table("`status` says", "It means", "What to do")
    code = "".join(Path(each.__file__).read_text() for each in (hung, problem, problems, writes))
    said = re.findall(
        r'(?:what=|Rank\.[A-Z]+,\s*|(?:BEHIND|FAILING|OWNER_GONE|HEAD_LOCKED|HUNG): Final = )"([a-z ]+)"', code
    )
    assert {row[0].strip("`").lower() for row in rows} == {*said}
    assert len(rows) == len({*said}) > 1
    assert {verb for row in rows for verb in re.findall(r"`lanelog ([a-z-]+)", row[2])} <= {*all_verbs()}


def test_no_command_is_dangerous() -> None:
    """No index has lanelog: what somebody puts there would run with the database's password, which no command shows."""
    assert "PASSWORD" not in SHELL
    commands = re.findall(r"pip install[^`\n]*", TEXT)
    assert len(commands) > 3
    commands += re.findall(r"pip install[^`\n]*", SOURCE)
    assert [command for command in commands if re.search(r"[ '\"]lanelog\b", command)] == []


def test_every_event_is_logged_by_the_code() -> None:
    """Names of events on the pages are names that somebody can search a log for."""
    named = {name for name in re.findall(r"`([a-z]+\.[a-z_]+)(?: [^`]*)?`", TEXT) if re.search(rf'"{name}"', SOURCE)}
    assert {"handler.slow", "message.dead_lettered", "settlement.refused"} <= named


def test_every_error_is_named() -> None:
    """The tree in the reference is the whole tree."""
    (line,) = re.findall(r"All errors are one tree under (.*)", TEXT)
    named = set(re.findall(r"`(?:lanelog\.)?([A-Z]\w+)`", line))
    real = {
        name
        for name in lanelog.__all__
        if isinstance(kind := getattr(lanelog, name), type) and issubclass(kind, lanelog.LanelogError)
    }
    assert named == real


def test_the_reference_shows_every_field() -> None:
    """Of each value there that only the library makes, and of each class of its module that such a field names.

    A class that users make has the signature of its constructor: `docs/conf.py`.
    """
    values = {"message", "health", "measures", "notices", "_subscription_facts"}
    page = (ROOT / "docs/reference/python-api.md").read_text()
    made = re.findall(r"_MADE_BY_USERS = \{(.*?)\}", (ROOT / "docs/conf.py").read_text(), re.DOTALL)[0]
    shown = dict(re.findall(r"^\.\. autoclass:: ([\w.]+)\n((?:   :.*\n)*)", page, re.MULTILINE))
    kinds = {name: pkgutil.resolve_name(re.sub(r"\.(?=[A-Z])", ":", name)) for name in shown}
    assert {"Message", "Receipt", "DeadLetter", "SubscriptionStats", "Health", "Measures"} <= {
        kind.__name__ for kind in kinds.values()
    }
    missing = []
    for name, kind in kinds.items():
        if (
            not attrs.has(kind)
            or kind.__module__.removeprefix("lanelog.") not in values
            or f'"{kind.__name__}"' in made
        ):
            continue
        module = vars(sys.modules[kind.__module__])
        public = [each for each in attrs.fields(kind) if not each.name.startswith("_")]
        listed = re.findall(r":members: (.*)", shown[name])
        everything = ":members:\n" in shown[name] and ":undoc-members:" in shown[name]
        missing += [f"{name}.{each.name}" for each in public if not everything and each.name not in str(listed)]
        parts = [module.get(word) for each in public for word in re.findall(r"\w+", str(each.type))]
        missing += [part.__name__ for part in parts if attrs.has(part) and part not in kinds.values()]
    assert missing == []


def test_the_packages_of_the_compatibility_page_are_those_of_the_project() -> None:
    """Each extra for users with its requirements, and the versions of Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {f"`{name}`": needs for name, needs in project["optional-dependencies"].items()}
    wanted = {"always": project["dependencies"], **extras}
    shown = {extra: re.findall(r"`([^`]+)`", needs) for extra, needs in table("Extra", "Requires")}
    assert shown == {extra: needs for extra, needs in wanted.items() if extra not in {"`dev`", "`docs`"}}
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    declared = re.findall(r"Python :: (3\.\d+)", str(project["classifiers"]))
    assert f"CPython {', '.join(declared[:-1])} and {declared[-1]}" in page


def test_every_attribute_of_lanelog_exists() -> None:
    """`lanelog.X` in text and examples is public."""
    for name in re.findall(r"\blanelog\.([A-Z]\w+|connect)\b", TEXT):
        assert name in lanelog.__all__


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them; the start page of the documentation is the README."""
    text = README if page == ROOT / "docs/index.md" else page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """To files of the repository and headings in them; elsewhere only to documentation that is named here."""
    for link in re.findall(r"\]\((?!https://tenacity\.readthedocs\.io)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("folder", ["tutorial", "howto", "operations", "spark", "reference", "explanation"])
def test_an_index_says_what_each_of_its_pages_is_for(folder: str) -> None:
    """One row for each page of the folder, in the order of the menu."""
    text = (ROOT / "docs" / folder / "index.md").read_text()
    rows = re.findall(r"^\| \[.+\]\(([\w-]+)\.md\) \| .{20,} \|$", text, re.MULTILINE)
    (menu,) = re.findall(r"^```\{toctree\}\n(?::.*\n)*\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert rows == menu.splitlines()
    assert {*rows, "index"} == {path.stem for path in (ROOT / "docs" / folder).glob("*.md")}


def test_every_drawing_is_described_follows_the_theme_and_stands_on_a_page() -> None:
    """Each has a title, a description, text as text and the one style, at most 8 KiB, and loads nothing."""
    drawings = sorted((ROOT / "docs/drawings").glob("*.svg"))
    assert len(drawings) >= 4
    svg = "{http://www.w3.org/2000/svg}"
    for path in drawings:
        root = ET.fromstring(path.read_text())  # noqa: S314 - the drawings are ours
        described = [root.find(f"{svg}{name}") for name in ("title", "desc")]
        assert all(each is not None and each.text for each in described), path
        assert root.get("aria-labelledby") == "title desc", path
        assert len(root.findall(f"{svg}text")) > 5, path
        assert path.stat().st_size <= 8192, path
        assert not re.search(r"href|url\(|@import", path.read_text()), path
        assert re.search(rf"!\[[^\]]{{20,}}\]\([./]*drawings/{path.name}\)", TEXT), path
    (style,) = {re.findall(r"<style>.*</style>", path.read_text(), re.DOTALL)[0] for path in drawings}
    assert "prefers-color-scheme: dark" in style
    assert not re.search("[│┌└├─▶▼]", TEXT)  # nothing is drawn with characters


def test_the_versions_are_the_ones_that_the_code_accepts() -> None:
    """Oldest servers and the oldest Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"].replace(">=", "Python ≥ ") in TEXT
    assert f"MySQL {server_facts._OLDEST_MYSQL[0]}.{server_facts._OLDEST_MYSQL[1]} to" in TEXT
    assert f"MariaDB {server_facts._OLDEST_MARIADB[0]}.{server_facts._OLDEST_MARIADB[1]} to" in TEXT


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_name_no_machine(page: Path) -> None:
    """No path of somebody's machine, and no address but the documentation's."""
    text = page.read_text()
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|usr|var)\b", text)
    assert {re.match(r"https?://[^/)\s]+", url)[0] for url in re.findall(r"https?://\S+", text)} <= {  # type: ignore[index]
        "https://tenacity.readthedocs.io",
        "https://keepachangelog.com",
    }


def test_the_changelog_begins_with_this_version() -> None:
    """Keep a Changelog's form: a version with its date, or what is unreleased while one is developed.

    Within a version, breaking changes stand first: in a section of their own, or, in versions before, marked.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n")
    first = re.findall(r"^## (.*)$", text, re.MULTILINE)[0]
    assert re.fullmatch(r"\[Unreleased\]" if "dev" in version else rf"\[{version}\] - \d{{4}}-\d\d-\d\d", first)
    kinds = {"Breaking", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds
    for section in re.split(r"^##+ .*$", text, flags=re.MULTILINE)[1:]:
        entries = re.findall(r"^- (\*\*Breaking:\*\*)?", section, re.MULTILINE)
        assert entries == sorted(entries, reverse=True)
    for version_text in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]:
        assert "Breaking" not in re.findall(r"^### (.*)$", version_text, re.MULTILINE)[1:]
