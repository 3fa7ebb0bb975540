import json
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanelog._base.payloads.codec import decode_payload, encode_payload
from lanelog._base.payloads.metadata import METADATA_MAX_BYTES, decode_metadata, encode_metadata
from lanelog.errors import ConfigurationError, PayloadTooLarge
from lanelog.message import utc_from_ms

TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXT, children, max_size=4),
    max_leaves=20,
)


class TestPayload:
    """encode_payload without a codec, and decode_payload after it."""

    @given(st.binary())
    def test_bytes_stay_as_they_are(self, data: bytes) -> None:
        """Bytes of any kind, as bytes, and with nothing said of what they are."""
        for value in (data, bytearray(data), memoryview(data)):
            encoded, content_type = encode_payload(value)
            assert type(encoded) is bytes
            assert encoded == data
            assert content_type is None
            assert decode_payload(encoded, None, None) == data

    def test_a_buffer_is_copied(self) -> None:
        """Later changes of the caller's buffer do not change the message."""
        buffer = bytearray(b"abc")
        encoded, _ = encode_payload(buffer)
        buffer[0] = 0
        assert encoded == b"abc"
        assert encode_payload(memoryview(b"abcdef")[::2]) == (b"ace", None)

    @given(TEXT)
    def test_text_is_utf8(self, text: str) -> None:
        """Text, not JSON."""
        assert encode_payload(text) == (text.encode(), "text/plain; charset=utf-8")
        assert decode_payload(*encode_payload(text), None) == text

    @given(JSON.filter(lambda value: not isinstance(value, str)))
    def test_json_comes_back_equal(self, value: object) -> None:
        """json() and decode() return what was published as JSON, and nothing is warned of."""
        encoded, content_type = encode_payload(value)
        assert json.loads(encoded) == decode_payload(encoded, content_type, None) == value
        assert encoded == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        assert content_type == "application/json"

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
        assert encode_payload(value)[0] == encoded

    def test_a_lone_surrogate_in_text_is_refused(self) -> None:
        """A lone surrogate cannot be UTF-8."""
        with pytest.raises(ConfigurationError, match="the payload contains a lone surrogate at position 1"):
            encode_payload("a\ud800")

    def test_a_tuple_is_refused(self) -> None:
        """A tuple would come back as a list."""
        with pytest.raises(ConfigurationError, match=r"is a tuple.* publish a list, or give a codec="):
            encode_payload((1, 2))


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
        """No metadata takes no space; a content type is metadata."""
        assert encode_metadata(nothing) is None
        assert decode_metadata(None) == {}
        assert decode_metadata(encode_metadata(nothing, 'a/b; c="d"')) == {"content-type": 'a/b; c="d"'}

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
        with pytest.raises(PayloadTooLarge):  # the content type counts
            encode_metadata({"a": "x" * (METADATA_MAX_BYTES - 8)}, "text/plain")

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
