"""The statements that `lanelog grants` prints."""

import pytest

from lanelog._base.roles import ROLES
from support.cli import Command
from support.readme import sql

command = Command(None)


def test_the_readme_shows_what_the_command_prints() -> None:
    """Every role's statements stand there word for word, in the same order, and no others."""
    printed = [command("grants", "--role", role).stdout for role in ROLES]
    assert "\n".join(printed) == sql("GRANT")


def test_database_user_and_host_are_the_given_ones() -> None:
    """The database is the URL's, unless one is named; names are quoted where a server would misread them."""
    there = Command("mysql://root:s3cret@127.0.0.1:1/shop_1")  # is not asked
    text = there("grants", "--role", "publisher", "--user", "web", "--host", "10.0.%").stdout
    lines = text.splitlines()
    assert lines[1] == r"GRANT SELECT ON `shop\_1`.* TO 'web'@'10.0.%';"  # or shopX1 would be meant as well
    assert lines[2] == "GRANT INSERT, UPDATE ON `shop_1`.queue_partitions TO 'web'@'10.0.%';"
    assert "s3cret" not in text
    assert "ON other.*" in there("grants", "--role", "reader", "--database", "other").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--role", "boss"],
        [],
        ["--role", "reader", "--user", "a'b"],
        ["--role", "reader", "--database", "a`b"],
        ["--role", "reader", "--host", "a\nb"],
        ["--role", "reader", "--host", "a\\"],
        ["--role", "reader", "--database", ""],
        ["--role", "reader", "--url", "nonsense:s3cret"],
    ],
)
def test_what_cannot_be_granted_is_refused(arguments: list[str]) -> None:
    """An unknown role, and names that would end their quotation: one line, and no password in it."""
    assert "s3cret" not in command.refused("grants", *arguments)
