"""Replay: messages of an archive, published again.

Owns the run of a replay, and its account in the archive. `rows` chooses rows and ids, `holder` has the group.

A replay may be run again after any interruption. The id of a replayed message follows from its archived offset and
the replay's name; a message whose id is in the log is not published again. A group of its own, `_replay-NAME`, holds
the messages in the log until the replay is over. A process that dies leaves that group. Collection waits for it until
the same replay is run again, or the group is deleted. The archive's account says that the replay is done before the
group is deleted: the same replay then does nothing, even after its messages were collected. A replay that found nothing
to publish gets no account, because it may find something later.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from lanelog import migrations
from lanelog._base.places import GroupTopic
from lanelog._database import Database
from lanelog._facts import spark as facts
from lanelog._log.lookup.known import known_group, read
from lanelog.errors import ConfigurationError, LanelogError
from lanelog.spark.archiving.flush import flush_directory, write_flushed
from lanelog.spark.archiving.group import born
from lanelog.spark.archiving.manifest import ManifestStore
from lanelog.spark.archiving.path import local_path
from lanelog.spark.leases import name_of_run
from lanelog.spark.presence import Presence
from lanelog.spark.replaying import rows
from lanelog.spark.replaying.holder import Holder, let_go
from lanelog.spark.replaying.options import ReplayOptions, names
from lanelog.spark.session import check_java, in_session
from lanelog.spark.source.options import database_options, parse_write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lanelog.spark.source.options import DatabaseAddress

DIRECTORY: Final = "_replays"


@frozen(kw_only=True)
class Replayed:
    """What a replay did, or with `dry_run` would do."""

    name: str
    chosen: int
    """Messages of the archive that pass the filters. For a replay that is done already: as many as it had."""
    published: int = 0
    duplicates: int = 0
    """Messages that an earlier run of the same replay had published."""
    done_before: bool = False
    """Whether the replay was done already, so that this run did nothing."""
    dry_run: bool
    topics: tuple[dict[str, Any], ...] = ()
    """For each target topic: to_topic, messages, keys, bytes, first_ms, last_ms (when written, epoch milliseconds)."""


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
    """Publish messages of an archive again, those of each key in their order.

    Replayed messages have new ids. Their metadata has the first id as `lanelog.original_id`, and the name as
    `lanelog.replay`. Each message is replayed once: replayed and redriven copies are left out. Of several dead letters
    of one message the last is replayed, and none if that one was redriven and its copy is archived.

    Args:
        path: Directory of the archive.
        topics: Topics under which the messages were published. With `dead_letters_of`, None means all.
        to: Publish to this topic. None: to the topic that they came from.
        keys: Only messages with these keys. None: all.
        ids: Only messages with these first ids. None: all.
        since: Only messages written to the log then or later (aware datetime).
        until: Only messages written to the log before then (aware datetime).
        dead_letters_of: Replay the dead letters of this group instead, to their original topics and for this group
            only, unless `all_groups`.
        target_group: Only this registered group gets the messages.
        all_groups: Dead letters go to every group.
        rate: The most messages a second. None: as fast as possible.
        name: The replay's name, at most 200 characters. A run with the same name continues the replay, and does
            nothing when it is done. None: a name that follows from the filters and from both databases.
        dry_run: Only count.
        url: The database to publish to. None: LANELOG_URL.
        password_env: Environment variable with the password of the URL's user.
        spark: The session to use. None: a session of its own.

    Returns:
        What was published, by topic.

    Raises:
        ConfigurationError: An argument is wrong, another run of the replay is alive, or a message cannot be published.
            Nothing was published.
        DatabaseError: The database does not answer. Run the replay again.
        LanelogError: Spark or the disk failed; with the first line of the message. Run the replay again.
    """
    options = ReplayOptions(
        path=os.fspath(path),
        topics=names("topic", topics),
        to=to,
        keys=names("key", keys),
        ids=names("id", ids),
        since=since,
        until=until,
        dead_letters_of=dead_letters_of,
        target_group=target_group,
        all_groups=all_groups,
        rate=rate,
        given_name=name,
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
    address = parse_write(database_options(url, password_env))
    if spark is None:
        check_java()
    owner = name_of_run("replay", secrets.token_hex(4))
    with closing(Database(address.config())) as database:
        migrations.check(database)
        options = evolve(options, source=manifest.database, target=born(database))
        account = _Account(root / DIRECTORY / options.state_file)
        done = account.done(options)
        if done is None:
            replayed = in_session(
                "lanelog replay",
                "the replay failed",
                spark,
                lambda session: _run(database, session, address, options, account, owner, dry_run=dry_run),
            )
        else:
            replayed = _done_before(options, done, dry_run=dry_run)
        if not dry_run:
            let_go(database, options.holder, but=owner)
        return replayed


def _done_before(options: ReplayOptions, chosen: int, *, dry_run: bool) -> Replayed:
    return Replayed(name=options.name, chosen=chosen, done_before=True, dry_run=dry_run)


def _run(
    database: Database,
    spark: SparkSession,
    address: DatabaseAddress,
    options: ReplayOptions,
    account: _Account,
    owner: str,
    *,
    dry_run: bool,
) -> Replayed:
    chosen = rows.chosen(spark, options)
    counted = rows.counted(chosen)
    topics = [row["to_topic"] for row in counted]
    if options.receiver is not None:
        for topic in topics:
            read(database, known_group, "finding the group", GroupTopic(topic=topic, group=options.receiver))
    published, duplicates = 0, 0
    number = sum(row["messages"] for row in counted)
    if topics and not dry_run:
        account.begin(options)
        holder, presence = Holder(database, options.holder, owner), Presence(database, options.holder, owner)
        try:
            holder.take(topics, presence)
            # Another run may have finished since the account was read, and its messages may be collected.
            done = account.done(options)
            if done is not None:
                return _done_before(options, done, dry_run=dry_run)
            presence.start(lambda: topics, lambda: None, lambda error: facts.replay_presence_failed(error=error))
            # No more tasks than keys: each task has its share of the rate, and a task without a key would waste it.
            parts = max(1, min(spark.sparkContext.defaultParallelism, sum(row["keys"] for row in counted)))
            try:
                published, duplicates = rows.publish(chosen, options, address, holder.fence, parts)
            except BaseException:
                holder.leave()  # tasks that still run publish nothing then
                raise
            account.end(options, number)
        finally:
            presence.stop(topics)
        facts.replay_done(name=options.name, published=published, duplicates=duplicates)
    return Replayed(
        name=options.name,
        chosen=number,
        published=published,
        duplicates=duplicates,
        dry_run=dry_run,
        topics=tuple(counted),
    )


@frozen
class _Account:
    """The account of a replay, in a file of the archive: that it has begun, later that it is done.

    A done account stays done: a run that slept while another one finished does not overwrite it when it begins at last.
    """

    path: Path

    def done(self, options: ReplayOptions) -> int | None:
        """Return how many messages a finished replay of that name had. None: it is not finished, or never began.

        Raises ConfigurationError if the account is of another replay.
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
        """Note that the replay has begun, unless there is an account. Raises ConfigurationError, LanelogError."""
        if self.done(options) is None:
            self._write({"name": options.name, "digest": options.digest, "state": "begun"}, os.link)
        self.done(options)  # refuses, if another replay of that name began at the same time

    def end(self, options: ReplayOptions, chosen: int) -> None:
        """Note that the replay is done. Raises LanelogError."""
        content = {"name": options.name, "digest": options.digest, "state": "done", "chosen": chosen}
        self._write(content, os.replace)

    def _write(self, content: dict[str, Any], give_name: Callable[[Path, Path], None]) -> None:
        # The file gets its name in one step, after it was flushed to the disk.
        unfinished = self.path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            self.path.parent.mkdir(exist_ok=True)
            try:
                write_flushed(unfinished, json.dumps(content).encode())
                with suppress(FileExistsError):
                    give_name(unfinished, self.path)
            finally:
                unfinished.unlink(missing_ok=True)
            flush_directory(self.path.parent)
            flush_directory(self.path.parent.parent)  # it holds the directory's own name
        except OSError as exc:
            raise LanelogError(
                f"{str(self.path)!r} cannot be written ({exc.strerror or exc}): a replay keeps its account there"
            ) from exc
