"""What is refused with one clear line, and what refuses to be shown."""

from collections.abc import Callable

import pytest

from lanelog.errors import ConfigurationError


def refused(function: Callable[..., object], *args: object, **options: object) -> str:
    """The one clear line with which the call is refused."""
    with pytest.raises(ConfigurationError) as caught:
        function(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


class Mute(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")
