"""The default JSON: which types it takes, what it refuses, and what it warns of."""

import dataclasses
import json
import math
import uuid
import warnings
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any

import attrs
import pytest

from lanelog._base.payloads import json as _json
from lanelog._base.payloads.json import encode_json
from lanelog.errors import ConfigurationError


class Opaque:
    """A type that JSON does not know."""


class Plain(Enum):
    """An Enum of text."""

    RED = "red"


class Text(StrEnum):
    """One that is text."""

    RED = "red"


class Number(IntEnum):
    """One that is a number."""

    TWO = 2


@attrs.frozen
class Price:
    """An attrs class, with a private field."""

    amount: Decimal
    _unit: str = "EUR"


@dataclasses.dataclass
class Order:
    """A dataclass."""

    number: uuid.UUID
    price: Price | None
    at: datetime


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - as users have them

ORDER = Order(uuid.UUID(int=7), Price(Decimal("12.50")), datetime(2026, 11, 22, 10, 0, 0, 5, tzinfo=UTC))


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (datetime(2026, 11, 22, 10, 30, tzinfo=UTC), "2026-11-22T10:30:00+00:00"),
        (datetime(2026, 11, 22, 10, 30), "2026-11-22T10:30:00"),  # noqa: DTZ001 - as given
        (date(2026, 11, 22), "2026-11-22"),
        (Decimal("12.50"), "12.50"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Plain.RED, "red"),
        (Number.TWO, 2),
        ({Text.RED: Text.RED}, {"red": "red"}),
        (OrderedDict(a=1), {"a": 1}),
        (Price(Decimal(1)), {"amount": "1", "_unit": "EUR"}),
        (
            ORDER,
            {
                "number": "00000000-0000-0000-0000-000000000007",
                "price": {"amount": "12.50", "_unit": "EUR"},
                "at": "2026-11-22T10:00:00.000005+00:00",
            },
        ),
    ],
)
def test_types_of_applications_come_back_as_documented(value: object, comes_back: object) -> None:
    """By themselves and within; nothing is warned of."""
    assert json.loads(encode_json(value)) == comes_back
    assert json.loads(encode_json({"items": [value]})) == {"items": [comes_back]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"items": [1, 2, 3, {"price": Opaque()}]}, r"\$\.items\[3\]\.price is of type Opaque"),
        ({"a": 1, "a b": {"é": b"x"}}, r"\$\[key 2\]\[key 1\] is of type bytes"),
        ({"k" * 41: {1}}, r"\$\[key 1\] is of type set"),
        ({"7": {"k" * 40: {1}}}, r"\$\[key 1\]\.k{40} is of type set"),
        ([math.nan], r"\$\[0\] is not a finite number"),
        ({"a": -math.inf}, r"\$\.a is not a finite number"),
        ({"a": Decimal("NaN")}, r"\$\.a is not a finite number"),
        (math.inf, r"\$ is not a finite number"),
        ({"a": ["\ud800"]}, r"\$\.a\[0\] contains a lone surrogate"),
        ({"a": {"\udfff": 1}}, r"\$\.a has a key with a lone surrogate"),
        ({"a": {(1, 2): 3}}, r"\$\.a has a key of type tuple; JSON has only str"),
        ({"a": {math.nan: 3}}, r"\$\.a has a key that is not a finite number"),
        (Order(uuid.UUID(int=7), Price(Opaque()), ORDER.at), r"\$\.price\.amount is of type Opaque"),  # type: ignore[arg-type]
        (Price.__new__(Price), r"\$ is incomplete"),
        (Price, r"\$ is of type type"),
        (object(), r"\$ is of type object"),
    ],
)
def test_what_cannot_be_json_is_refused_with_its_path(value: object, says: str) -> None:
    """The error names place and type, never a value or a key that is no field's name, and the ways out."""
    with pytest.raises(ConfigurationError, match=f"the payload cannot be JSON: .*({says})") as caught:
        encode_json(value)
    assert str(caught.value).endswith("Convert it, give a codec=, or encode it yourself and publish bytes")
    assert str(caught.value).isprintable()


@pytest.mark.thorough
def test_circles_and_depths_are_refused() -> None:
    """A structure without end ends in a clear error."""
    circle: list[object] = []
    circle.append(circle)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, {"a": circle}, deep):
        with pytest.raises(ConfigurationError, match="cannot be JSON"):
            encode_json(value)
    while deep:
        deep = deep.pop()  # type: ignore[assignment] # unwound here: not every Python frees such a depth well


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [{"b": (1, 2)}]}, r"\$\.a\[0\]\.b is a tuple, which would be a list"),
        ({"a": Pair(1, 2)}, r"\$\.a is a tuple"),
        ({"a": datetime.now(UTC), "b": Price(Decimal(1), ())}, r"\$\.b\._unit is a tuple"),  # type: ignore[arg-type]
        ({"a": {1: 2}}, r"\$\.a has a key of type int, which would be a str"),
        ({None: 1}, r"\$ has a key of type NoneType"),
        ({1.5: 1}, r"\$ has a key of type float"),
        ({True: 1}, r"\$ has a key of type bool"),
    ],
)
def test_what_comes_back_different_is_warned_of(value: object, says: str) -> None:
    """The payload is stored, and a warning that Python shows by default has the path in it, and the line of code."""
    with pytest.warns(FutureWarning, match=says) as caught:
        encode_json(value)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_line_of_code_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning comes once for any number of messages: the texts that Python remembers are bounded."""
    monkeypatch.setattr(_json, "_named", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(300):
            encode_json({"a": (number,)})
        assert len(caught) == 1
        for number in range(300):
            encode_json({f"k{number}": (1,)})
        assert len(caught) <= 102
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(FutureWarning):
                encode_json({"b": ()})


def test_what_is_nearly_too_deep_is_stored_all_the_same() -> None:
    """Looking at the value needs no more depth than encoding it, or gives up silently."""
    value: Any = 1
    for _ in range(900):
        value = [value]
        encode_json(value)
