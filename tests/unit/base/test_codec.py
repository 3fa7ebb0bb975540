"""Codecs: when they are asked, what their content type does, and the way back."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lanelog._base.payloads.codec import Codec, check_codec, decode_payload, encode_payload
from lanelog.config import ConnectConfig
from lanelog.errors import ConfigurationError


class Repr:
    """A codec that says nothing of itself."""

    def encode(self, value: Any, /) -> bytes:
        """As repr does."""
        return repr(value).encode()


class Shout(Repr):
    """One with all that a codec may have."""

    content_type: Any = "application/x-shout"

    def decode(self, payload: bytes) -> object:
        """With a mark that distinguishes it from others."""
        return "shouted " + payload.decode()


class Odd:
    """One whose method returns, or raises, what it is given."""

    def encode(self, value: Any, /) -> Any:
        """No bytes."""
        if isinstance(value, Exception):
            raise value
        return value


@pytest.mark.parametrize("value", [{"a": 1}, [1], "text", 7, 0.5, True, (1, 2), {1}, datetime.now(UTC), object])
def test_a_codec_that_is_given_is_used(value: object) -> None:
    """For everything that the default would have encoded, or refused."""
    assert isinstance(Shout(), Codec)
    assert encode_payload(value, Shout()) == (repr(value).encode(), "application/x-shout")
    assert encode_payload(value, Repr()) == (repr(value).encode(), None)


def test_bytes_are_never_encoded() -> None:
    """Beside a codec they are marked, so that its decode() is not asked for them."""
    for value in (b"raw", bytearray(b"raw"), memoryview(b"raw")):
        assert encode_payload(value, Shout()) == (b"raw", "application/octet-stream")
        assert decode_payload(*encode_payload(value, Shout()), Shout()) == b"raw"


def test_the_content_type_of_bytes_is_the_callers() -> None:
    """Bytes can be forwarded with their metadata; of all else, only its encoder knows."""
    assert encode_payload(b"raw", given="image/png") == (b"raw", "image/png")
    assert encode_payload(b"raw", Shout(), given="image/png") == (b"raw", "image/png")
    for value in ("text", {"a": 1}):
        for codec in (None, Shout(), Repr()):
            with pytest.raises(ConfigurationError, match="metadata content-type is what lanelog writes"):
                encode_payload(value, codec, given="image/png")


def test_a_codec_must_be_one() -> None:
    """One without encode, or that returns text, is refused; its own exception reaches who published."""
    with pytest.raises(ConfigurationError, match="object has none"):
        encode_payload(1, object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="codec Odd must return bytes, not str"):
        encode_payload("text", Odd())
    with pytest.raises(LookupError):
        encode_payload(LookupError(), Odd())


@pytest.mark.parametrize("content_type", [7, b"a/b", "", "a/b\n", "ä/b", "x" * 256])
def test_a_content_type_is_one_line_of_ascii(content_type: object) -> None:
    """Other programs read it."""
    codec = Shout()
    codec.content_type = content_type
    with pytest.raises(ConfigurationError, match="content_type of the codec Shout must be"):
        check_codec(codec)


def test_a_clients_codec_is_checked_when_it_is_given() -> None:
    """A wrong codec is not left to the first publish, and two configurations do not differ by their codecs."""
    codec = Odd()
    codec.decode = 7  # type: ignore[attr-defined]
    for wrong in (object(), codec, 7):
        with pytest.raises(ConfigurationError, match="codec"):
            ConnectConfig(database="d", codec=wrong)
    config = ConnectConfig.from_url("mysql://h/d", codec=Shout())
    assert isinstance(config.codec, Shout)
    assert config == ConnectConfig.from_url("mysql://h/d")


@pytest.mark.parametrize(
    ("content_type", "codec", "value"),
    [
        (None, None, b"[1]"),
        (None, Shout(), "shouted [1]"),
        ("application/json", None, [1]),
        ("Application/JSON; charset=UTF-8", None, [1]),
        ("application/json", Shout(), [1]),
        ("text/plain", Shout(), "[1]"),
        ('text/plain;charset="utf-8"', None, "[1]"),
        ("application/octet-stream", Shout(), b"[1]"),
        ("application/x-shout", Shout(), "shouted [1]"),
        ("Application/X-Shout", Shout(), "shouted [1]"),
    ],
)
def test_the_content_type_goes_first_then_the_clients_codec(
    content_type: str | None, codec: Codec | None, value: object
) -> None:
    """Without either, the bytes are what there is to give."""
    assert decode_payload(b"[1]", content_type, codec) == value


def test_a_codec_for_the_type_is_asked_before_the_default() -> None:
    """A client's own JSON reads JSON; one that does not say what it is for is asked for what nobody else knows."""
    codec = Shout()
    codec.content_type = "application/json"
    assert decode_payload(b"[1]", "application/json", codec) == "shouted [1]"
    codec.content_type = None
    assert [decode_payload(b"[1]", kind, codec) for kind in ("application/json", "image/png")] == [[1], "shouted [1]"]


def test_what_cannot_be_decoded_says_why() -> None:
    """No codec, one for something else, one that cannot decode, or bytes that are not what is said of them."""
    for content_type, codec, why in (
        ("image/png", None, "'image/png' and this client has no codec"),
        ("image/png", Shout(), "'image/png' and this client has a codec for application/x-shout"),
        ("text/plain; charset=latin-1", None, "'text/plain; charset=latin-1'"),
        (None, Repr(), "codec Repr has no method decode"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            decode_payload(b"x", content_type, codec)
    for content_type in ("application/json", "text/plain"):
        with pytest.raises(ValueError, match=r"can't decode|Expecting"):
            decode_payload(b"\xff", content_type, None)
