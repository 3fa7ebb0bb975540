"""Wrong wall clocks for processes that tests start."""

import os
from pathlib import Path

import pytest


def libfaketime() -> str:
    """The library that gives a process another clock; without it the test is skipped, in CI it fails."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        reason = "libfaketime is missing: apt-get install faketime (Debian and Ubuntu), or run .ci/setup-clocks as root"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return str(found[0])


def clock(library: str, offset: str) -> dict[str, str]:
    """An environment in which the wall clock is wrong, and the monotonic clock is not."""
    return {"LD_PRELOAD": library, "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
