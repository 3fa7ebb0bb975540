"""A job: one changed file of one commit, and its payload in the queue.

Owns the form of the payload, and the choice of the lane. Never runs git, and never touches a database.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from attrs import field, frozen

PART_BYTES: Final = 256 * 1024
"""Larger files travel in several jobs.

So every job fits into the packet of any server, in which each byte takes two.
"""

MALFORMED_LANE: Final = "%malformed"
"""The lane of the malformed job.

No path has it: a percent sign of a path is always followed by two hexadecimal digits.
"""

_LANE_MAX = 255
_LANE_KEPT = 220


class MalformedJob(ValueError):
    """The payload is not that of a job."""


@frozen(kw_only=True)
class Job:
    """What one commit did to one path, or the next part of a large file's content.

    `mode` is git's: 100644, 100755, 120000 for a symbolic link, 160000 for a submodule, whose content is the commit's
    id. Empty: the path was deleted. `source`: the path was renamed from there, within the lane. `repo` is empty while
    there is only one repository.
    """

    repo: str
    commit: str
    author: str
    path: bytes
    mode: str = ""
    source: bytes | None = None
    part: int = 0
    content: bytes = field(default=b"", repr=False)

    @property
    def lane(self) -> str:
        """The key under which the job is published."""
        return lane_of(self.repo, self.path)

    @property
    def id(self) -> str:
        """The same at every publish of this history, so that a repetition is recognised."""
        return f"{self.commit}:{hashlib.sha256(self.path).hexdigest()}:{self.part}"

    def encode(self) -> bytes:
        """Return the payload: one line of JSON in ASCII, then the content as it is.

        A path is bytes. Bytes that are not UTF-8 become lone surrogates, which JSON escapes and `decode` restores.
        """
        header: dict[str, Any] = {
            "repo": self.repo,
            "commit": self.commit,
            "author": self.author,
            "path": _text(self.path),
            "mode": self.mode,
            "source": None if self.source is None else _text(self.source),
            "part": self.part,
        }
        return json.dumps(header, separators=(",", ":")).encode("ascii") + b"\n" + self.content

    @classmethod
    def decode(cls, payload: bytes) -> Job:
        """Parse a payload. Raises MalformedJob."""
        line, newline, content = payload.partition(b"\n")
        if not newline:
            raise MalformedJob("the payload has no header line")
        try:
            header = json.loads(line.decode("ascii"))
            source = header["source"]
            return cls(
                repo=header["repo"],
                commit=header["commit"],
                author=header["author"],
                path=_bytes(header["path"]),
                mode=header["mode"],
                source=None if source is None else _bytes(source),
                part=header["part"],
                content=content,
            )
        except ValueError as exc:
            raise MalformedJob(f"the header is not JSON: {exc}") from exc
        except (TypeError, KeyError, AttributeError) as exc:
            raise MalformedJob(f"the header is not a job's: {exc!r}") from exc


def lane_of(repo: str, path: bytes) -> str:
    """Return the lane of a path: its first two components. Characters that a key cannot hold are percent-encoded.

    Every change of a path has the same lane. So the order within lanes is all that a rebuild needs.
    """
    lane = _quoted(_text(b"/".join(path.split(b"/")[:2])))
    if repo:
        lane = f"{_quoted(repo).replace(':', '%3A')}:{lane}"
    if len(lane) > _LANE_MAX:
        lane = f"{lane[:_LANE_KEPT].rstrip()}%{hashlib.sha256(lane.encode()).hexdigest()[:32]}"
    return lane


def _quoted(text: str) -> str:
    inner = len(text) - len(text.rstrip(" "))
    outer = len(text) - len(text.lstrip(" "))
    last = len(text) - inner
    return "".join(
        character
        if character.isprintable() and character != "%" and outer <= index < last
        else "".join(f"%{byte:02X}" for byte in _bytes(character))
        for index, character in enumerate(text)
    )


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
