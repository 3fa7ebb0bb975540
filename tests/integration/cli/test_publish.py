"""The verb `publish`: one message, the lines of a file, and what it says when it ends half-way."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from lanelog import Client
from lanelog.cli.data.publish import _batches
from lanelog.errors import PayloadTooLarge
from support.cli import Command
from support.sql import one, rows


def payloads(raw: Any, key: str) -> list[bytes]:
    """What a lane of `merge` holds."""
    sql = "SELECT payload FROM queue_messages WHERE topic = 'merge' AND partition_key = %s ORDER BY `offset`"
    return [payload for (payload,) in rows(raw, sql, key)]


def test_one_message(command: Command, raw: Any) -> None:
    """A message is published with id and metadata; the same id a second time is reported as a duplicate."""
    arguments = ("publish", "merge", "k", "pr 17", "--id", "a", "--metadata", "by=ann", "--metadata", "why=a=b")
    assert command(*arguments).stdout == "published offset 1 of merge, lane k\n"
    assert command(*arguments).stdout == "a is there already, at offset 1 of merge, lane k\n"
    assert command.json(*arguments) == {"offset": 1, "id": "a", "duplicate": True, "key": "k"}
    assert command.json("show", "merge", "k", "1")["metadata"] == {"by": "ann", "why": "a=b"}
    assert payloads(raw, "k") == [b"pr 17"]


def test_a_message_is_bytes_and_may_be_said_to_be_something(command: Command, lanelog_client: Client) -> None:
    """A message has no type unless --metadata gives one, just as the lines of a file."""
    for more in ((), ("--metadata", "content-type=application/json")):
        command("publish", "merge", "k", '{"pr": 17}', *more)
    found = []
    for message in lanelog_client.deliveries("merge", "g", timeout=20.0):
        found.append(message.decode())
        message.ack()
        if len(found) == 2:
            break
    assert found == [b'{"pr": 17}', {"pr": 17}]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo\r\n\xff", [b"one", b"", b"two\r", b"\xff"]),
        (b"".join(b"%d\n" % n for n in range(2500)), [b"%d" % n for n in range(2500)]),
    ],
    ids=["nothing", "no line feed", "one line", "bytes", "many"],
)
def test_lines_are_messages(command: Command, raw: Any, tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    """Of standard input and of a file alike: bytes as they are, in order, an empty line an empty message."""
    (tmp_path / "lines").write_bytes(data)
    said = f"published {len(lines):,} message{'' if len(lines) == 1 else 's'} to merge, lane"
    assert command("publish", "merge", "piped", stdin=data).stdout == f"{said} piped\n"
    assert command("publish", "merge", "file", "--file", str(tmp_path / "lines")).stdout == f"{said} file\n"
    assert command("publish", "merge", "dash", "--file", "-", stdin=data).stdout == f"{said} dash\n"
    for key in ("piped", "file", "dash"):
        assert payloads(raw, key) == lines


def test_what_was_published_before_a_failure_is_reported(command: Command, raw: Any) -> None:
    """Lines before the one that is too long stay; how many they are is in the line, and the exit status is 1."""
    data = b"".join(b"%d\n" % n for n in range(1200)) + b"y" * 2_000_000
    result = command("publish", "merge", "k", stdin=data, status=1)
    (line,) = result.stderr.splitlines()
    assert "max_payload_bytes" in line
    count = int(one(raw, "SELECT COUNT(*) FROM queue_messages"))
    assert f"{count:,} lines before that were published: go on after them" in line
    assert count > 0


def test_lines_of_a_slow_pipe_go_at_once() -> None:
    """A line is published when it is there, not when a batch is full."""
    end, begin = os.pipe()
    with os.fdopen(end, "rb") as reading:
        with os.fdopen(begin, "wb") as writing:
            batches = _batches(reading, 100)
            writing.write(b"one\ntw")
            writing.flush()
            assert next(batches) == [b"one"]
            writing.write(b"o\nthree\n")
            writing.flush()
            assert next(batches) == [b"two", b"three"]
            writing.write(b"four")
        assert list(batches) == [[b"four"]]


def test_an_endless_line_is_not_read_to_its_end() -> None:
    """A line that is longer than a payload may be is refused as soon as that is seen."""

    class Endless(io.RawIOBase):
        read_so_far = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            buffer[:] = b"x" * len(buffer)
            self.read_so_far += len(buffer)
            return len(buffer)

    endless = Endless()
    with pytest.raises(PayloadTooLarge):
        list(_batches(io.BufferedReader(endless), 5_000_000))
    assert endless.read_so_far < 10_000_000
