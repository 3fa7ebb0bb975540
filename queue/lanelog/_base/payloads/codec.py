"""The encoding of payloads, their content types, and the decoding.

Never talks to a database. Bytes are never encoded: redrive, replay and dead letters copy them together with the
metadata, which has the content type.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from lanelog._base.payloads.json import encode_json
from lanelog.errors import ConfigurationError

if TYPE_CHECKING:
    from attrs import Attribute

CONTENT_TYPE: Final = "content-type"
"""The name of the content type in the metadata."""

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
BYTES_TYPE: Final = "application/octet-stream"
CONTENT_TYPE_MAX: Final = 255


@runtime_checkable
class Codec(Protocol):
    """Encodes payloads as bytes. Give it as `codec=` to `connect`, `publish`, `publish_many`, `schedule` or `Outgoing`.

    It encodes every payload except bytes. Any number of threads call it at once. It may also have:

    `content_type`, a str such as `"application/x-msgpack"`. It is stored with each message, as metadata `content-type`.
    Without it, messages have no content type, and their readers must know the encoding.

    `decode(payload: bytes) -> object`. `message.decode()` calls it on the codec of the reading client.
    """

    def encode(self, value: Any, /) -> bytes:
        """Return the payload's bytes. `publish` passes on any exception; nothing was written then."""


def check_codec(codec: object) -> None:
    """Raise ConfigurationError if this is no codec."""
    name = type(codec).__name__
    if not callable(getattr(codec, "encode", None)):
        raise ConfigurationError(f"codec must have a method encode(value) -> bytes; {name} has none")
    decode = getattr(codec, "decode", None)
    if decode is not None and not callable(decode):
        raise ConfigurationError(f"decode of the codec {name} must be a method decode(payload)")
    _content_type_of(codec)


def codec_option(_: Any, __: Attribute[Any], value: object) -> None:
    """Validate a field that holds a codec, or None."""
    if value is not None:
        check_codec(value)


def encode_payload(value: object, codec: Codec | None = None, *, given: str | None = None) -> tuple[bytes, str | None]:
    """Return the bytes to store, and their content type or None.

    Bytes stay as they are. The codec encodes anything else. Without a codec, a str becomes UTF-8, and anything else
    JSON. `given` is the content type in the caller's metadata. Only bytes may have it: for anything else the encoder
    says the type. Raises ConfigurationError, and any exception of the codec.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        # Without a codec here, bytes need no mark. With one, a reader's codec would take them for its own.
        return bytes(value), given if given is not None or codec is None else BYTES_TYPE
    if given is not None:
        raise ConfigurationError(
            f"metadata {CONTENT_TYPE} is what lanelog writes when it encodes a payload: leave it out, or publish bytes"
        )
    if codec is not None:
        return _encode_with(codec, value)
    if isinstance(value, str):
        return utf8("the payload", value), TEXT_TYPE
    if isinstance(value, tuple):
        raise ConfigurationError("the payload is a tuple, which JSON has not: publish a list, or give a codec=")
    return encode_json(value), JSON_TYPE


def decode_payload(payload: bytes, content_type: str | None, codec: Codec | None) -> Any:
    """Return the payload as it was published, by its content type or, without one, by `codec`.

    Raises ConfigurationError if no codec fits, ValueError if the bytes are not what the type says, and any exception of
    the codec.
    """
    if content_type is None:
        return payload if codec is None else _decode_with(codec, payload)
    own = None if codec is None else _content_type_of(codec)
    wanted = _normal(content_type)
    if codec is not None and own is not None and _normal(own) == wanted:
        return _decode_with(codec, payload)
    if wanted in _JSON_TYPES:
        return json.loads(payload)
    if wanted in _TEXT_TYPES:
        return payload.decode()
    if wanted == BYTES_TYPE:
        return payload
    if codec is not None and own is None:  # a codec without a type may be for any type
        return _decode_with(codec, payload)
    shown = content_type if len(content_type) <= CONTENT_TYPE_MAX else f"{content_type[:CONTENT_TYPE_MAX]}…"
    has = "has no codec" if codec is None else f"has a codec for {own}"
    raise ConfigurationError(
        f"the message's content type is {shown!r} and this client {has}: connect with a codec for it, "
        "or decode message.payload yourself"
    )


@functools.lru_cache(maxsize=128)
def _normal(content_type: str) -> str:
    return "".join(content_type.split()).replace('"', "").lower()


_JSON_TYPES: Final = frozenset({JSON_TYPE, f"{JSON_TYPE};charset=utf-8"})
_TEXT_TYPES: Final = frozenset({"text/plain", "text/plain;charset=utf-8"})


def _content_type_of(codec: object) -> str | None:
    found = getattr(codec, "content_type", None)
    if found is None:
        return None
    if not isinstance(found, str) or not 0 < len(found) <= CONTENT_TYPE_MAX or not _is_printable_ascii(found):
        raise ConfigurationError(
            f"content_type of the codec {type(codec).__name__} must be a str of 1 to {CONTENT_TYPE_MAX} printable "
            "ASCII characters, like application/x-msgpack"
        )
    return found


def _is_printable_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _encode_with(codec: Codec, value: object) -> tuple[bytes, str | None]:
    check_codec(codec)
    encoded = codec.encode(value)
    if not isinstance(encoded, bytes | bytearray | memoryview):
        raise ConfigurationError(f"the codec {type(codec).__name__} must return bytes, not {type(encoded).__name__}")
    return bytes(encoded), _content_type_of(codec)


def _decode_with(codec: Codec, payload: bytes) -> Any:
    decode = getattr(codec, "decode", None)
    if decode is None:
        raise ConfigurationError(f"the client's codec {type(codec).__name__} has no method decode(payload): add one")
    return decode(payload)


def utf8(what: str, text: str) -> bytes:
    """Return the bytes of a text. Raises ConfigurationError."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ConfigurationError(
            f"{what} contains a lone surrogate at position {exc.start} and cannot be UTF-8"
        ) from None
