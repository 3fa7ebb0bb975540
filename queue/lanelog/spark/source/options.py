"""The options of the data source: parsed, checked and typed. Their names mean the same as in Spark's Kafka connector.

Never talks to a database. Reads the environment only for a password and LANELOG_URL. No repr and no error shows the
password.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
from attrs import field, frozen

from lanelog._base.connection_options import PAYLOAD_MAX, URL_VARIABLE
from lanelog._database import fastest
from lanelog.config import ConnectConfig, check_name
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = "lanelog"
TABLES: Final = ("messages", "delivery_state", "offsets", "leases", "groups", "history")
EARLIEST: Final = -2
"""In a JSON of offsets: the lane's oldest message, as in the Kafka connector."""
LATEST: Final = -1
"""In a JSON of offsets: after the lane's newest message."""

Bound = Literal["earliest", "latest"]
Offsets = dict[str, dict[str, int]]
"""Topic → key → offset: the first to be read, or the first not to be read."""

_ADDRESS = ("url", "passwordEnv")
_TOPICS = ("subscribe", "subscribePattern", "groupId", "table")
_MESSAGES = (
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "includePayload",
)
_BATCH = ("endingOffsets",)
_STREAM = ("maxOffsetsPerTrigger",)
_SPARKS = ("checkpointLocation", "queryName")
"""Options that Spark passes to a sink and reads itself."""
_BOOLEANS = {"true": True, "false": False}
_LONGEST = 2**63 - 1


@frozen(kw_only=True)
class DatabaseAddress:
    """The URL of the database, and the variable that holds its password.

    The driver makes it, and sends it to the tasks. With a variable, it does not contain the password.
    """

    url: str = field(repr=False)
    password_env: str | None = None

    def config(self) -> ConnectConfig:
        """Return the settings of a connection for this process, with the fastest installed driver.

        Raises ConfigurationError, also if the variable is not set in this process.
        """
        # The publishers of a message have checked its size already. A copy needs no bound of its own.
        config = ConnectConfig.from_url(self.url, driver=fastest(), pool_size=2, max_payload_bytes=PAYLOAD_MAX)
        if self.password_env is None:
            return config
        if config.password:
            raise ConfigurationError("the password is in the URL and in passwordEnv: leave one of them out")
        password = os.environ.get(self.password_env)
        if password is None:
            raise ConfigurationError(
                f"passwordEnv names the environment variable {self.password_env!r}, which is not set in this process: "
                "set it before the driver and the executors start"
            )
        return attrs.evolve(config, password=password)


@frozen(kw_only=True)
class ReadOptions:
    """What to read, from where to where."""

    address: DatabaseAddress
    table: str
    topics: tuple[str, ...]
    """Empty: those that match `pattern`, or all of them for a table other than messages."""
    pattern: str | None
    group: str | None
    starting: Bound | Offsets
    starting_ms: int | None
    ending: Literal["latest"] | Offsets
    max_offsets: int | None
    min_partitions: int
    fail_on_data_loss: bool
    include_payload: bool


def database_options(url: str | None, password_env: str | None) -> dict[str, str]:
    """Return the options that say where the database is."""
    given = {"url": url, "passwordEnv": password_env}
    return {name: value for name, value in given.items() if value is not None}


def parse_write(options: Mapping[str, str]) -> DatabaseAddress:
    """Check the options of a write. Raises ConfigurationError."""
    given = _known(options, (*_ADDRESS, *_SPARKS), "written")
    return _address(given)


def parse_read(options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Check the options of a read. Raises ConfigurationError.

    Args:
        options: Names and values, as Spark passes them.
        streaming: Whether it is a stream. None: not known yet.
    """
    table = _choice("table", {key.lower(): value for key, value in options.items()}.get("table", "messages"), TABLES)
    known: tuple[str, ...] = (*_ADDRESS, *_TOPICS)
    if table == "messages":
        known += _MESSAGES + (() if streaming else _BATCH) + (() if streaming is False else _STREAM)
    elif table == "history":
        known += ("startingTimestamp",)
    if table != "messages" and streaming:
        raise ConfigurationError(f"table={table} can be read as a batch only: a stream reads messages")
    what = f"table={table} is read" + ("" if streaming is None else " as a stream" if streaming else " as a batch")
    given = _known(options, known, what)
    _exclusive(given, table)
    if table == "messages" and not {"subscribe", "subscribePattern"} & given.keys():
        raise ConfigurationError("what is to be read? give subscribe (topics, separated by commas) or subscribePattern")
    starting = _offsets("startingOffsets", given.get("startingOffsets", "latest" if streaming else "earliest"))
    if starting == "latest" and streaming is False:
        raise ConfigurationError("startingOffsets=latest of a batch reads nothing: give earliest or offsets")
    ending = _offsets("endingOffsets", given.get("endingOffsets", "latest"))
    if ending == "earliest" or (isinstance(ending, dict) and EARLIEST in _values(ending)):
        raise ConfigurationError("endingOffsets=earliest reads nothing: give latest or offsets")
    if isinstance(starting, dict) and streaming is False and LATEST in _values(starting):
        raise ConfigurationError("startingOffsets of a batch cannot be latest (-1): give earliest (-2) or an offset")
    if isinstance(starting, dict) and isinstance(ending, dict):
        _refuse_backwards(starting, ending)
    return ReadOptions(
        address=_address(given),
        table=table,
        topics=_topics(given.get("subscribe")),
        pattern=_pattern(given.get("subscribePattern")),
        group=check_name("groupId", given["groupId"]) if "groupId" in given else None,
        starting=starting,
        starting_ms=_integer(given, "startingTimestamp", least=0),
        ending=ending,
        max_offsets=_integer(given, "maxOffsetsPerTrigger", least=1),
        min_partitions=_integer(given, "minPartitions", least=1) or 1,
        fail_on_data_loss=_boolean(given, "failOnDataLoss"),
        include_payload=_boolean(given, "includePayload"),
    )


def _known(options: Mapping[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """Return the options by their proper names. Spark passes them in lower case."""
    proper = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for option, value in options.items():
        name = proper.get(option.lower())
        if name is None:
            close = difflib.get_close_matches(option.lower(), list(proper), n=1)
            known_ones = ", ".join(name for name in sorted(known, key=str.lower) if name not in _SPARKS)
            hint = f"did you mean {proper[close[0]]!r}?" if close else f"known are {known_ones}"
            raise ConfigurationError(f"unknown option {option!r} where {what}; {hint}")
        given[name] = value
    return given


def _exclusive(given: Mapping[str, str], table: str) -> None:
    watermark = ": a group starts at its watermark"
    for one, other, why in (
        ("subscribe", "subscribePattern", ""),
        ("startingOffsets", "startingTimestamp", ""),
        ("groupId", "startingOffsets", watermark),
        *([("groupId", "startingTimestamp", watermark)] if table == "messages" else []),
    ):
        if one in given and other in given:
            raise ConfigurationError(f"{one} and {other} exclude each other{why}; leave one of them out")


def _address(given: Mapping[str, str]) -> DatabaseAddress:
    url = given.get("url") or os.environ.get(URL_VARIABLE)
    if not url:
        raise ConfigurationError(f"no URL: give the option url, or set {URL_VARIABLE} before the driver starts")
    ConnectConfig.from_url(url)  # a URL that cannot be read fails here, and not in every task
    return DatabaseAddress(url=url, password_env=given.get("passwordEnv"))


def _topics(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [check_name("topic in subscribe", name.strip()) for name in text.split(",")]
    return tuple(sorted(set(names)))


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as exc:
            raise ConfigurationError(f"subscribePattern is no regular expression: {exc}") from None
    return text


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value.lower() not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value.lower()


def _boolean(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "true")
    if value.lower() not in _BOOLEANS:
        raise ConfigurationError(f"{name} must be true or false, not {value!r}")
    return _BOOLEANS[value.lower()]


def _integer(given: Mapping[str, str], name: str, *, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", value) or not least <= int(value) <= _LONGEST:
        raise ConfigurationError(f"{name} must be a whole number, at least {least}, not {value!r}")
    return int(value)


def _offsets(name: str, text: str) -> Any:
    """Return `earliest`, `latest`, or offsets from JSON. The JSON of a stream's checkpoint is accepted, too."""
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    wrong = ConfigurationError(
        f'{name} must be earliest, latest or JSON as {{"topic": {{"key": 7}}}}, with offsets from 1, '
        f"or {EARLIEST} for earliest and {LATEST} for latest"
    )
    try:
        parsed = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(parsed, dict):
        raise wrong
    offsets: Offsets = {}
    for topic, lanes in parsed.items():
        if not topic:  # the version of a checkpoint's form
            continue
        if not isinstance(lanes, dict):
            raise wrong
        named = {key: offset for key, offset in lanes.items() if key}  # the empty key: a creation time of a checkpoint
        if not all(map(_is_offset, named.values())):
            raise wrong
        offsets[check_name(f"topic in {name}", topic)] = {
            check_name(f"key in {name}", key): named[key] for key in named
        }
    return offsets


def _refuse_backwards(starting: Offsets, ending: Offsets) -> None:
    for topic, lanes in starting.items():
        for key, begin in lanes.items():
            end = ending.get(topic, {}).get(key, LATEST)
            if 0 < end < begin:
                raise ConfigurationError(
                    f"endingOffsets ends at {end} in lane {topic!r} {key!r}, where startingOffsets begins at {begin}"
                )


def _is_offset(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return value in {EARLIEST, LATEST} or 1 <= value <= _LONGEST


def _values(offsets: Offsets) -> set[int]:
    return {offset for lanes in offsets.values() for offset in lanes.values()}
