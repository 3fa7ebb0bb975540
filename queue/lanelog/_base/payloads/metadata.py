"""The metadata of a message as the JSON text of its row.

Owns the check of what a publisher gives, and the reading of what any program has written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring as _quoted
from types import MappingProxyType

from lanelog._base.payloads.codec import CONTENT_TYPE, utf8
from lanelog.errors import ConfigurationError, PayloadTooLarge

METADATA_MAX_BYTES = 65_535
"""The most bytes of metadata as JSON. Metadata is for headers; data belongs into the payload."""

_NO_METADATA: Mapping[str, str] = MappingProxyType({})
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_metadata(metadata: object, content_type: str | None = None) -> str | None:
    """Return the JSON text to store, with the content type in it. None: there is neither.

    Raises ConfigurationError unless every key and value is a str, and PayloadTooLarge.
    """
    if metadata is None:
        return None if content_type is None else _only(content_type)
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"metadata must be a mapping of str to str, not {type(metadata).__name__}")
    if content_type is not None:
        metadata = {**metadata, CONTENT_TYPE: content_type}
    # One pass that checks and encodes: with an encoder's own set-up, this took as long as the rest of the draft.
    pairs = []
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(
                f"metadata must map str to str, not {type(name).__name__} to {type(value).__name__}"
            )
        pairs.append(f"{_quoted(name)}:{_quoted(value)}")
    if not pairs:
        return None
    text = f"{{{','.join(pairs)}}}"
    size = len(text) if text.isascii() else len(utf8("metadata", text))
    if size > METADATA_MAX_BYTES:
        raise PayloadTooLarge(
            f"metadata has {size} bytes as JSON, {METADATA_MAX_BYTES} are allowed: put data into the payload"
        )
    return text


@lru_cache(maxsize=128)
def _only(content_type: str) -> str:
    return _JSON.encode({CONTENT_TYPE: content_type})


def decode_metadata(text: str | bytes | None) -> Mapping[str, str]:
    """Return the metadata of a row, read-only. A value that is no str, from another program, comes as JSON text."""
    if not text:
        return _NO_METADATA
    try:
        return _texts(json.loads(text))
    except ValueError:  # a number that Python cannot hold or write: 1e400, or thousands of digits
        return _texts(json.loads(text, parse_int=str, parse_float=str))


def _texts(found: object) -> Mapping[str, str]:
    if not isinstance(found, dict):
        return _NO_METADATA
    return MappingProxyType(
        {name: value if isinstance(value, str) else _JSON.encode(value) for name, value in found.items()}
    )
