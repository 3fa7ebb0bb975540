"""Replay: messages of an archive, published again.

Owns the run of a replay and the account of it in the archive; rows and ids are `rows`'s, the group
`holder`'s. Applications call `replay`, and so does `lanelog replay`.

A replay may be run again, whatever stopped it: each message has an id that follows from where it stands in the archive
and from the replay's name, and one that is in the log under its id is not published again. So that no message of a
replay leaves the log before the replay is over, a group of its own, `_replay-NAME`, holds them there. Whoever dies in
the middle leaves that group, and collection waits for it, until the same replay is run again or the group is deleted.
What is done is written down in the archive before the group goes: the same replay then does nothing, also after its
messages were collected. Of a replay that found nothing to publish nothing is written down: it may find something later.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from lanelog import migrations
from lanelog._database import Database
from lanelog._places import GroupTopic
from lanelog._telemetry import get_logger
from lanelog.admin.lookup.known import known_group, read
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.spark.archiving.flush import flush_directory
from lanelog.spark.archiving.group import born
from lanelog.spark.archiving.manifest import ManifestStore, local_path
from lanelog.spark.archiving.presence import Presence
from lanelog.spark.errors import in_one_line
from lanelog.spark.replaying import rows
from lanelog.spark.replaying.holder import Holder, let_go
from lanelog.spark.replaying.options import ReplayOptions, checked
from lanelog.spark.session import check_java, in_session
from lanelog.spark.source.options import parse_write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lanelog.spark.source.options import DatabasePlace

DIRECTORY: Final = "_replays"

log = get_logger("spark")


@frozen(kw_only=True)
class Replayed:
    """What a replay did, or would do."""

    name: str
    chosen: int
    """Messages of the archive that the filters let pass; of a replay that was done before, as many as there were."""
    published: int
    duplicates: int
    """Messages that an earlier run of the same replay had published."""
    done_before: bool
    dry_run: bool
    topics: tuple[dict[str, Any], ...]
    """By topic it goes to: to_topic, messages, keys, bytes, first_ms, last_ms (when they were written)."""


def replay(
    path: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    to: str | None = None,
    keys: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    dead_letters_of: str | None = None,
    target_group: str | None = None,
    all_groups: bool = False,
    rate: float | None = None,
    name: str | None = None,
    dry_run: bool = False,
    url: str | None = None,
    password_env: str | None = None,
    spark: SparkSession | None = None,
) -> Replayed:
    """Publish messages of the archive at `path` again, in the order in which each key had them.

    `topics`: where they were published; `to`: where they go (default: back there). `keys`, `ids` (the first ones),
    `since` and `until` (aware; when they were written into the log, until excluded) leave others out.
    `dead_letters_of`: the dead letters of this group instead, of `topics` or of all, which go back to their original
    topics and to that group alone, unless `all_groups`. `target_group`: one group that must be registered; the others
    pass the messages by. `rate`: at most so many messages a second.

    `name`: running a replay of the same name again goes on with it, and adds nothing when it is done; default: one that
    follows from the filters and from both databases. One run at a time. `dry_run` only counts.

    Replayed messages have new ids; metadata `lanelog.original_id` has the first one, `lanelog.replay` the name.
    Each message is replayed once: copies that were replayed or redriven are left out, dead letters are not. Of several
    dead letters of one message the last is replayed, and none that was redriven if its copy is archived. Raises
    ConfigurationError before anything is written, DatabaseError, and LanelogError with a line of what Spark or the disk
    said.
    """
    options = checked(
        path=os.fspath(path),
        topics=topics,
        to=to,
        keys=keys,
        ids=ids,
        since=since,
        until=until,
        dead_letters_of=dead_letters_of,
        target_group=target_group,
        all_groups=all_groups,
        rate=rate,
        name=name,
    )
    return _replay(options, url, password_env, spark, dry_run=dry_run)


def _replay(
    options: ReplayOptions, url: str | None, password_env: str | None, spark: SparkSession | None, *, dry_run: bool
) -> Replayed:
    root = local_path(options.path)
    manifest = ManifestStore(root).required()
    unknown = set(options.topics) - manifest.lanes.keys() if options.dead_letters_of is None else set()
    if unknown:
        raise ConfigurationError(f"the archive at {str(root)!r} holds nothing of topic {min(unknown)!r}")
    given = {"url": url, "passwordEnv": password_env}
    place = parse_write({option: value for option, value in given.items() if value is not None})
    if spark is None:
        check_java()
    database = Database(place.config())
    owner = f"replay@{socket.gethostname()[:200]}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        migrations.check(database)
        options = evolve(options, source=manifest.database, target=born(database))
        account = _Account(root / DIRECTORY / options.state_file)
        done = account.done(options)
        if done is None:
            with in_one_line("the replay failed"):
                replayed = in_session(
                    "lanelog replay",
                    spark,
                    lambda session: _run(database, session, place, options, account, owner, dry_run=dry_run),
                )
        else:
            replayed = _done_before(options, done, dry_run=dry_run)
        if not dry_run:
            let_go(database, options.holder, but=owner)
        return replayed
    finally:
        database.close()


def _done_before(options: ReplayOptions, chosen: int, *, dry_run: bool) -> Replayed:
    return Replayed(
        name=options.name, chosen=chosen, published=0, duplicates=0, done_before=True, dry_run=dry_run, topics=()
    )


def _run(
    database: Database,
    spark: SparkSession,
    place: DatabasePlace,
    options: ReplayOptions,
    account: _Account,
    owner: str,
    *,
    dry_run: bool,
) -> Replayed:
    chosen = rows.chosen(spark, options)
    counted = rows.counted(chosen)
    topics = rows.topics_of(counted)
    if options.target_group is not None:
        for topic in topics:
            read(database, known_group, "looking for the group", GroupTopic(topic=topic, group=options.target_group))
    published, duplicates = 0, 0
    number = sum(row["messages"] for row in counted)
    if topics and not dry_run:
        account.begin(options)
        holder, presence = Holder(database, options.holder, owner), Presence(database, options.holder, owner)
        try:
            holder.take(topics, presence)
            # Another run may have been done since the last look; what it published may be collected.
            done = account.done(options)
            if done is not None:
                return _done_before(options, done, dry_run=dry_run)
            presence.start(lambda: topics, lambda: None, lambda error: log.error("replay.presence_failed", error=error))
            # No more tasks than keys: each has its share of the rate, and one without a key would waste it.
            parts = max(1, min(spark.sparkContext.defaultParallelism, sum(row["keys"] for row in counted)))
            try:
                published, duplicates = rows.publish(chosen, options, place, holder.fence, parts)
            except BaseException:
                holder.leave()  # a task that does not hear of the end publishes nothing
                raise
            account.end(options, number)
        finally:
            presence.stop(topics)
        log.info("replay.done", name=options.name, published=published, duplicates=duplicates)
    return Replayed(
        name=options.name,
        chosen=number,
        published=published,
        duplicates=duplicates,
        done_before=False,
        dry_run=dry_run,
        topics=tuple(counted),
    )


@frozen
class _Account:
    """What is written down about a replay, in a file of the archive: that it has begun, later that it is done.

    What is done stays so: a run that slept while another one finished writes over nothing when it begins at last.
    """

    path: Path

    def done(self, options: ReplayOptions) -> int | None:
        """How many messages a replay of that name had that is over; None: it is not, or never began.

        Raises ConfigurationError if that was another replay.
        """
        try:
            found: dict[str, Any] = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise ConfigurationError(f"{str(self.path)!r} cannot be read ({type(exc).__name__}): remove it") from exc
        if found.get("digest") != options.digest:
            raise ConfigurationError(
                f"a replay named {options.name!r} was {found.get('state')} with other options: give another name"
            )
        return int(found["chosen"]) if found.get("state") == "done" else None

    def begin(self, options: ReplayOptions) -> None:
        """Write down that it has begun, unless something is written down. Raises ConfigurationError, LanelogError."""
        if self.done(options) is None:
            self._write({"name": options.name, "digest": options.digest, "state": "begun"}, os.link)
        self.done(options)  # whose account it is, if two were begun at once

    def end(self, options: ReplayOptions, chosen: int) -> None:
        """Write down that it is done. Raises LanelogError."""
        content = {"name": options.name, "digest": options.digest, "state": "done", "chosen": chosen}
        self._write(content, os.replace)

    def _write(self, content: dict[str, Any], place: Callable[[Path, Path], None]) -> None:
        # In one step, and to the disk.
        unfinished = self.path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            self.path.parent.mkdir(exist_ok=True)
            try:
                with unfinished.open("x") as file:
                    json.dump(content, file)
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    place(unfinished, self.path)
            finally:
                unfinished.unlink(missing_ok=True)
            flush_directory(self.path.parent)
            flush_directory(self.path.parent.parent)  # which has the directory's own name
        except OSError as exc:
            raise LanelogError(
                f"{str(self.path)!r} cannot be written ({exc.strerror or exc}): a replay keeps its account there"
            ) from exc
