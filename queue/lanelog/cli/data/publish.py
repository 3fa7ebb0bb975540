"""The command `publish`: messages from the command line, a file or standard input.

Owns how input becomes messages, and what is said when it ends half-way. Never holds more than one batch in memory.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import IO, TYPE_CHECKING, Any

import click
from attrs import evolve
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from lanelog._base.payloads.codec import utf8
from lanelog._base.text import plural, shown
from lanelog.cli.command import options
from lanelog.cli.command.times import FORMS, time_text
from lanelog.cli.command.verbs import Unfinished, finish
from lanelog.cli.output.answer import Answer
from lanelog.errors import ConfigurationError, LanelogError, PayloadTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lanelog import Client, Outgoing, Receipt

_BATCH, _CHUNK = 1000, 1024 * 1024


@options.command("publish orders ann '{\"total\": 12}'", "publish orders ann --file lines.txt")
@options.arguments("topic", "[key]", "[message]")
@click.option("--no-key", is_flag=True, help="It needs no order: leave KEY out, and it goes to an open lane.")
@click.option("--file", "file", type=click.File("rb"), help="One message a line; `-`: standard input.")
@click.option("--id", "message_id", metavar="ID", help="Makes MESSAGE idempotent: a second time it is a duplicate.")
@options.seconds("--delay", "Deliver in S seconds, and not at once.")
@options.time("--deliver-at", f"Deliver at a time such as {FORMS[:-3]}+1h.")
@options.seconds("--ttl", "Deliver within S seconds, or not at all.")
@options.metadata
@options.as_json
@options.url
def publish(
    *,
    topic: str,
    key: str | None,
    message: str | None,
    no_key: bool,
    file: IO[bytes] | None,
    message_id: str | None,
    pairs: tuple[str, ...],
    as_json: bool,
    url: str | None,
    **times: Any,
) -> None:
    """Publish MESSAGE under KEY, or every line of --file or standard input as a message, in order.

    Lines are published in batches of up to 1000, each all or nothing.
    """
    import lanelog

    metadata = options.metadata_of(pairs)
    if no_key:
        if message is not None:
            raise ConfigurationError("with --no-key give TOPIC and MESSAGE alone: the messages have no KEY")
        key, message = None, key
    elif key is None:
        raise ConfigurationError("give the KEY to publish under; or --no-key, for messages that need no order")
    if message is not None and file is not None:
        raise ConfigurationError("give MESSAGE or --file, not both")
    if message is None and file is None:
        if sys.stdin.isatty():
            raise ConfigurationError("nothing to publish: give MESSAGE, --file or standard input")
        file = sys.stdin.buffer
    if message is None and message_id is not None:
        raise ConfigurationError("--id is for one MESSAGE: the lines of a file would all be the same one")
    model = lanelog.Outgoing(key, b"", metadata=metadata, **times)
    with lanelog.connect(url) as client:
        if file is not None:
            found = _lines(client, topic, model, file)
            where = "open lanes" if key is None else f"lane {shown(key)}"
            text = f"published {plural(found['messages'] or 0, 'message')} to {shown(topic)}, {where}"
            finish(Answer(data=found, lines=[text]), as_json=as_json, config=client.config)
            return
        assert message is not None  # noqa: S101 - for the type checker
        (receipt,) = client.publish_many(topic, [evolve(model, payload=utf8("the payload", message), id=message_id)])
    text = f"{_where(receipt)} of {shown(topic)}, lane {shown(receipt.key)}"
    if model.deliver_at is not None and not receipt.offset and not receipt.duplicate:
        text += f": {time_text(model.deliver_at)}"
    finish(Answer(data=receipt, lines=[text]), as_json=as_json, config=client.config)


def _where(receipt: Receipt) -> str:
    where = f"offset {receipt.offset}" if receipt.offset else f"{shown(receipt.id)}, not due yet,"
    if not receipt.duplicate:
        return f"published {where}"
    return f"{shown(receipt.id)} is there already, at {where}" if receipt.offset else f"there already: {where}"


def _lines(client: Client, topic: str, model: Outgoing, file: IO[bytes]) -> dict[str, int | None]:
    """Publish the lines as `model` says. Return their number, and the offsets of the first and the last one."""
    count, first, last = 0, None, None
    with _progress(file) as progress:
        task = progress.add_task("publish", total=_size(file))
        try:
            for batch in _batches(file, client.config.max_payload_bytes):
                receipts = client.publish_many(topic, [evolve(model, payload=line) for line in batch])
                count += len(receipts)
                first, last = first or receipts[0].offset, receipts[-1].offset
                progress.update(task, advance=sum(map(len, batch)) + len(batch))
        except LanelogError as exc:
            if not count:
                raise
            raise Unfinished(f"{exc}; {plural(count, 'line')} before that were published: go on after them") from exc
    return {"messages": count, "first_offset": first, "last_offset": last}


def _batches(file: IO[bytes], longest: int) -> Iterator[list[bytes]]:
    """Yield lines, at most one transaction's at a time. Lines of a slow pipe are yielded as they come."""
    read = getattr(file, "read1", file.read)
    rest = b""
    while chunk := read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), _BATCH):
            yield lines[start : start + _BATCH]
        if len(rest) > longest:
            raise PayloadTooLarge(f"a line is longer than max_payload_bytes, {longest}")
    if rest:
        yield [rest]


def _size(file: IO[bytes]) -> int | None:
    """Return the bytes of a regular file; None for a pipe."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):  # the file has no descriptor
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _progress(file: IO[bytes]) -> Progress:
    """Return a progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    columns = [DownloadColumn(), *([BarColumn(), TimeRemainingColumn()] if _size(file) else [])]
    return Progress(TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal)
