"""Time zone data of a test's own: compiled zones, as one version of the data or another has them.

It never changes the zones of the process that runs the tests. A test gives the bytes to ZoneInfo, or the directory to a
process of its own.
"""

import struct
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo


def compiled(offset: int, changes: Sequence[tuple[int, int]] = ()) -> bytes:
    """A zone file (RFC 8536, version 1): so many seconds ahead of UTC, and from each moment on another offset."""
    offsets = [offset, *(later for _, later in changes)]
    counts = struct.pack(">6l", 0, 0, 0, len(changes), len(offsets), 4)
    moments = b"".join(struct.pack(">l", moment) for moment, _ in changes)
    types = b"".join(struct.pack(">lBB", each, number > 0, 0) for number, each in enumerate(offsets))
    return b"TZif" + bytes(16) + counts + moments + bytes(range(1, len(offsets))) + types + b"XXX\0"


def zone(offset: int, changes: Sequence[tuple[int, int]] = ()) -> ZoneInfo:
    """Such a zone, for this process."""
    return ZoneInfo.from_file(BytesIO(compiled(offset, changes)), key="Test/Zone")


def tzdata(directory: Path, version: str, name: str, offset: int, changes: Sequence[tuple[int, int]] = ()) -> str:
    """A directory with one zone, of data of a version that is named as on Linux; what PYTHONTZPATH is to be."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compiled(offset, changes))
    (directory / "tzdata.zi").write_text(f"# version {version}\n")
    return str(directory)
