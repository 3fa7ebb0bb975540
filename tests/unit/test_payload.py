from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.message import (
    METADATA_MAX_BYTES,
    Codec,
    decode_metadata,
    encode_metadata,
    encode_payload,
    utc_from_ms,
)

TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=20,
)


class Opaque:
    """A type that JSON does not know."""


class Upper:
    """A codec."""

    def encode(self, value: Any, /) -> Any:
        """Shout the type, raise an error, or return what is no bytes."""
        if isinstance(value, Exception):
            raise value
        return type(value).__name__.upper().encode() if isinstance(value, Opaque) else value


class TestPayload:
    """encode_payload."""

    @given(st.binary())
    def test_bytes_stay_as_they_are(self, data: bytes) -> None:
        """Bytes of any kind, as bytes."""
        for value in (data, bytearray(data), memoryview(data)):
            encoded = encode_payload(value)
            assert type(encoded) is bytes
            assert encoded == data

    def test_a_buffer_is_copied(self) -> None:
        """What the caller does to its buffer afterwards does not change the message."""
        buffer = bytearray(b"abc")
        encoded = encode_payload(buffer)
        buffer[0] = 0
        assert encoded == b"abc"
        assert encode_payload(memoryview(b"abcdef")[::2]) == b"ace"

    @given(TEXT)
    def test_text_is_utf8(self, text: str) -> None:
        """Text, not JSON."""
        assert encode_payload(text).decode() == text

    @given(JSON.filter(lambda value: not isinstance(value, str)))
    def test_json_comes_back_equal(self, value: object) -> None:
        """What was published as JSON is what json() returns."""
        encoded = encode_payload(value)
        assert json.loads(encoded) == value
        assert encoded == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    @pytest.mark.parametrize(
        ("value", "encoded"),
        [
            ({"pr": 17, "ok": [True, None]}, b'{"pr":17,"ok":[true,null]}'),
            ({"ö": "é"}, '{"ö":"é"}'.encode()),
            ([], b"[]"),
            (17, b"17"),
            (0.5, b"0.5"),
            (False, b"false"),
            (None, b"null"),
            ("", b""),
        ],
    )
    def test_json_is_compact(self, value: object, encoded: bytes) -> None:
        """No byte more than needed, and readable in any script."""
        assert encode_payload(value) == encoded

    @pytest.mark.parametrize(
        "value",
        ["\ud800", ["\ud800"], {"\udfff": 1}, math.nan, [math.inf], {"a": -math.inf}, {"a": Opaque()}, {(1, 2): 3}],
    )
    def test_what_cannot_come_back_is_refused(self, value: object) -> None:
        """Lone surrogates, NaN, infinities and foreign types inside JSON."""
        with pytest.raises(ConfigurationError, match=r"the payload (cannot be JSON|contains a lone surrogate)"):
            encode_payload(value)

    def test_circles_and_depths_are_refused(self) -> None:
        """A structure without end ends in a clear error."""
        circle: list[object] = []
        circle.append(circle)
        deep: list[object] = []
        for _ in range(100_000):
            deep = [deep]
        for value in (circle, {"a": circle}, deep):
            with pytest.raises(ConfigurationError, match="cannot be JSON"):
                encode_payload(value)
        while deep:
            deep = deep.pop()  # type: ignore[assignment] # unwound here: not every Python frees such a depth well

    @pytest.mark.parametrize("value", [Opaque(), (1, 2), {1, 2}, Decimal(1), datetime.now(UTC), object])
    def test_other_types_need_a_codec(self, value: object) -> None:
        """The error names the type and the way out."""
        with pytest.raises(ConfigurationError, match=f"pass codec= for {type(value).__name__}"):
            encode_payload(value)

    def test_a_codec_encodes_other_types(self) -> None:
        """It is asked for what is neither bytes, str nor JSON."""
        assert isinstance(Upper(), Codec)
        assert encode_payload(Opaque(), Upper()) == b"OPAQUE"
        assert encode_payload({"a": 1}, Upper()) == b'{"a":1}'
        assert encode_payload(b"raw", Upper()) == b"raw"

    def test_a_codec_must_be_one(self) -> None:
        """A codec without encode, or one that returns text, is refused; its own exception reaches who published."""
        with pytest.raises(ConfigurationError, match="Opaque has none"):
            encode_payload(Opaque(), Opaque())  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="codec Upper must return bytes, not Decimal"):
            encode_payload(Decimal(1), Upper())
        with pytest.raises(LookupError):
            encode_payload(LookupError(), Upper())


class TestMetadata:
    """encode_metadata and decode_metadata."""

    @given(st.dictionaries(TEXT, TEXT))
    def test_it_comes_back_equal(self, metadata: dict[str, str]) -> None:
        """Any text as names and values, of any mapping: what was received can be published again."""
        text = encode_metadata(metadata)
        assert decode_metadata(text) == metadata
        assert decode_metadata(None if text is None else text.encode()) == metadata
        assert encode_metadata(MappingProxyType(metadata)) == text

    @pytest.mark.parametrize("nothing", [None, {}, MappingProxyType({})])
    def test_nothing_is_null(self, nothing: Any) -> None:
        """No metadata takes no space."""
        assert encode_metadata(nothing) is None
        assert decode_metadata(None) == {}

    @pytest.mark.parametrize(
        "metadata", ["ab", b"ab", 7, ["ab"], [("a", "b")], {"a": 1}, {1: "a"}, {"a": None}, {"a": "\ud800"}]
    )
    def test_only_text_to_text(self, metadata: Any) -> None:
        """Numbers and other types are not converted behind the caller's back; lone surrogates could not be stored."""
        with pytest.raises(ConfigurationError, match=r"metadata (must|contains a lone surrogate)"):
            encode_metadata(metadata)

    def test_it_is_for_headers(self) -> None:
        """A large value belongs into the payload."""
        assert encode_metadata({"a": "x" * (METADATA_MAX_BYTES - 8)})
        with pytest.raises(PayloadTooLarge, match=f"has {METADATA_MAX_BYTES + 1} bytes"):
            encode_metadata({"a": "x" * (METADATA_MAX_BYTES - 7)})

    @pytest.mark.parametrize(
        ("text", "metadata"),
        [
            ("", {}),
            ("null", {}),
            ("[1]", {}),
            ('{"a": 1, "b": null, "c": ["ü"]}', {"a": "1", "b": "null", "c": '["ü"]'}),
            ('{"a": 1e400, "b": [-1e999], "c": "x"}', {"a": "1e400", "b": '["-1e999"]', "c": "x"}),
            (f'{{"a": {"9" * 5000}}}', {"a": "9" * 5000}),
        ],
        ids=["nothing", "null", "a list", "values", "beyond a float", "thousands of digits"],
    )
    def test_what_other_programs_stored_is_still_text(self, text: str, metadata: dict[str, str]) -> None:
        """A reader never gets anything but str to str."""
        assert decode_metadata(text) == metadata

    @given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1)))  # noqa: DTZ001 - made aware below
    def test_milliseconds_are_exact(self, moment: datetime) -> None:
        """No rounding of a float in between."""
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
        milliseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        assert utc_from_ms(milliseconds) == moment
