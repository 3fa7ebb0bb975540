"""The demo's own three tables: the rebuilt files, the applied jobs, and the counts by author.

Owns their SQL. Never commits: what is written here commits together with the ack of the job.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from typing import Any

import pymysql
from attrs import frozen

from demo.job import Job
from lanelog.config import ConnectConfig

CREATE = (
    """
CREATE TABLE {files} (
  repo      VARCHAR(255)   NOT NULL COMMENT 'which repository; empty: the only one',
  path_hash BINARY(32)     NOT NULL COMMENT 'SHA-256 of path, which may be longer than a key',
  part      INT UNSIGNED   NOT NULL COMMENT 'place of this piece of the content, from 0',
  path      BLOB           NOT NULL COMMENT 'the path as git has it: bytes',
  mode      CHAR(6)        NOT NULL COMMENT 'mode as git has it',
  content   MEDIUMBLOB     NOT NULL COMMENT 'the piece',
  PRIMARY KEY (repo, path_hash, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
""",
    # No unique key over the job: a job that is applied twice must show up as two rows.
    """
CREATE TABLE {applied} (
  place    BIGINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'order in which jobs were applied',
  lane     VARCHAR(255)    NOT NULL COMMENT 'key of the job',
  position BIGINT UNSIGNED NOT NULL COMMENT 'offset of the job',
  attempt  INT UNSIGNED    NOT NULL COMMENT 'which attempt it was',
  epoch    BIGINT UNSIGNED NOT NULL COMMENT 'fencing token of the worker that applied it',
  PRIMARY KEY (place),
  KEY by_job (lane, position)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
""",
    # One row for each author and lane: with a single row for an author, all lanes would wait for each other.
    """
CREATE TABLE {authors} (
  author_hash BINARY(32)      NOT NULL COMMENT 'SHA-256 of author, which may be longer than a key',
  lane        VARCHAR(255)    NOT NULL COMMENT 'key of the jobs counted here',
  author      TEXT            NOT NULL COMMENT 'name and address',
  jobs        BIGINT UNSIGNED NOT NULL COMMENT 'jobs of theirs',
  files       BIGINT UNSIGNED NOT NULL COMMENT 'files added or changed',
  deletions   BIGINT UNSIGNED NOT NULL COMMENT 'files deleted',
  bytes       BIGINT UNSIGNED NOT NULL COMMENT 'bytes written',
  PRIMARY KEY (author_hash, lane)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin
""",
)

DROP = "DROP TABLE IF EXISTS {files}, {applied}, {authors}"

# Remove a path with all its parts (PRIMARY, prefix).
DELETE_FILE = "DELETE FROM {files} WHERE repo = %s AND path_hash = %s"

# Add one part of a path (PRIMARY).
INSERT_PART = "INSERT INTO {files} (repo, path_hash, part, path, mode, content) VALUES (%s, %s, %s, %s, %s, %s)"

# The rebuilt content of a path (PRIMARY, prefix).
READ_FILE = "SELECT mode, content FROM {files} WHERE repo = %s AND path_hash = %s ORDER BY part"

# Every rebuilt path of a repository (PRIMARY, prefix).
READ_PATHS = "SELECT path FROM {files} WHERE repo = %s AND part = 0"

# One job was applied.
INSERT_APPLIED = "INSERT INTO {applied} (lane, position, attempt, epoch) VALUES (%s, %s, %s, %s)"

# Applied jobs by lane: rows, jobs, and deliveries before the one that succeeded (by_job).
READ_APPLIED = """
SELECT lane, COUNT(*), COUNT(DISTINCT position), CAST(SUM(attempt - 1) AS SIGNED) FROM {applied} GROUP BY lane
"""

# Jobs that were not applied right behind their predecessor.
READ_DISORDER = """
SELECT COUNT(*) FROM (
  SELECT position, COALESCE(LAG(position) OVER (PARTITION BY lane ORDER BY place), 0) AS before_it FROM {applied}
) AS steps WHERE position <> before_it + 1
"""

# Count a job for its author (PRIMARY); matches nothing the first time.
COUNT_JOB = """
UPDATE {authors} SET jobs = jobs + 1, files = files + %s, deletions = deletions + %s, bytes = bytes + %s
WHERE author_hash = %s AND lane = %s
"""
FIRST_JOB = """
INSERT INTO {authors} (files, deletions, bytes, author_hash, lane, author, jobs) VALUES (%s, %s, %s, %s, %s, %s, 1)
"""

# The counts, busiest author first.
READ_AUTHORS = """
SELECT MIN(author), CAST(SUM(jobs) AS SIGNED), CAST(SUM(files) AS SIGNED), CAST(SUM(deletions) AS SIGNED),
       CAST(SUM(bytes) AS SIGNED)
FROM {authors} GROUP BY author_hash ORDER BY 2 DESC, 1
"""


@frozen(kw_only=True)
class AuthorRow:
    """What one author did."""

    author: str
    jobs: int
    files: int
    deletions: int
    bytes: int


@frozen(kw_only=True)
class AppliedRow:
    """The applied jobs of one lane. `rows` is more than `jobs` if a job was applied twice."""

    rows: int
    jobs: int
    redeliveries: int


@frozen
class Tables:
    """SQL of one run's tables. Their names contain `run`, so that runs on one database do not meet.

    Its methods take a DB-API connection; handlers pass that of `message.transaction()`.
    """

    run: str

    def create(self, connection: Any) -> None:
        """Create the tables, on a connection of `own_connection`."""
        for statement in CREATE:
            self._execute(connection, statement)

    def drop(self, connection: Any) -> None:
        """Drop the tables, on a connection of `own_connection`."""
        self._execute(connection, DROP)

    def apply(self, connection: Any, job: Job) -> None:
        """Do to the rebuilt files what the job says."""
        if job.source is not None:
            self._execute(connection, DELETE_FILE, job.repo, _hash(job.source))
        if job.part == 0:
            self._execute(connection, DELETE_FILE, job.repo, _hash(job.path))
        if job.mode:
            values = (job.repo, _hash(job.path), job.part, job.path, job.mode, job.content)
            self._execute(connection, INSERT_PART, *values)

    def note_applied(self, connection: Any, lane: str, position: int, attempt: int, epoch: int) -> None:
        """Note that a job was applied."""
        self._execute(connection, INSERT_APPLIED, lane, position, attempt, epoch)

    def count(self, connection: Any, lane: str, job: Job) -> None:
        """Count a job for its author."""
        author = job.author.encode()
        # A further part of a large file is another job, but not another file.
        amounts = (int(bool(job.mode) and job.part == 0), int(not job.mode), len(job.content))
        key = (hashlib.sha256(author).digest(), lane)
        if not self._execute(connection, COUNT_JOB, *amounts, *key):
            self._execute(connection, FIRST_JOB, *amounts, *key, job.author)

    def file(self, connection: Any, repo: str, path: bytes) -> list[tuple[str, bytes]]:
        """Return the parts of a rebuilt path: (mode, content); none if the path does not exist."""
        return [(mode, bytes(content)) for mode, content in self._query(connection, READ_FILE, repo, _hash(path))]

    def paths(self, connection: Any, repo: str) -> Iterator[bytes]:
        """Return every rebuilt path."""
        return (bytes(path) for (path,) in self._query(connection, READ_PATHS, repo))

    def applied(self, connection: Any) -> dict[str, AppliedRow]:
        """Return the applied jobs by lane."""
        return {
            lane: AppliedRow(rows=rows, jobs=jobs, redeliveries=redeliveries)
            for lane, rows, jobs, redeliveries in self._query(connection, READ_APPLIED)
        }

    def out_of_order(self, connection: Any) -> int:
        """Return how many jobs were not applied right behind their predecessor in the lane."""
        return int(self._query(connection, READ_DISORDER)[0][0])

    def authors(self, connection: Any) -> list[AuthorRow]:
        """Return the counts, busiest author first."""
        return [
            AuthorRow(author=author, jobs=jobs, files=files, deletions=deletions, bytes=size)
            for author, jobs, files, deletions, size in self._query(connection, READ_AUTHORS)
        ]

    def _names(self) -> dict[str, str]:
        return {name: f"lanelog_demo_{self.run}_{name}" for name in ("files", "applied", "authors")}

    def _execute(self, connection: Any, sql: str, *values: object) -> int:
        with connection.cursor() as cursor:
            return int(cursor.execute(sql.format(**self._names()), values))

    def _query(self, connection: Any, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql.format(**self._names()), values)
            return list(cursor.fetchall())


def own_connection(url: str) -> Any:
    """Open a connection of the application's own.

    CREATE and DROP end a transaction, so the library's transactions refuse them.
    """
    config = ConnectConfig.from_url(url)
    options: dict[str, Any] = {
        name: getattr(config, name) for name in ("host", "port", "unix_socket", "user", "password", "database")
    }
    if config.tls:
        options["ssl"] = context = ssl.create_default_context(cafile=config.ssl_ca)
        if not config.ssl_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.ssl_cert:
            context.load_cert_chain(config.ssl_cert, config.ssl_key)
    return pymysql.connect(autocommit=True, **options)


def _hash(path: bytes) -> bytes:
    return hashlib.sha256(path).digest()
