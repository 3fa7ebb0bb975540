"""Publish middleware: what an application puts around every publish.

Owns the order of the layers, and the check of what each hands on. Never writes: the last step is given by the caller.

A layer runs before the transaction begins. Its exception reaches the publisher, and nothing was written. After
`call_next` has returned the write is done (in a caller's transaction: sent). What a layer raises then changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from lanelog.errors import ConfigurationError
from lanelog.message import Outgoing, Publication

T = TypeVar("T")


def publish_through(
    layers: Sequence[Callable[..., object]], publication: Publication, write: Callable[[tuple[Outgoing, ...]], T]
) -> T:
    """Call the layers around `write`, the first one outermost. Return what `write` returned.

    The results of the layers are ignored: a layer that forgets its return must not lose the receipts of what is
    committed.

    Raises:
        ConfigurationError: A layer handed on something else than the same publication with other messages, or did not
            call the next one. Nothing was written. Or it called the next one twice: the second call wrote nothing.
    """
    call = _Layered(publication, write)
    step: Callable[[object], T] = call.write
    for layer in reversed(layers[1:]):
        step = partial(call.enter, layer, step)
    return call.enter(layers[0], step, publication)


class _Layered(Generic[T]):
    """One publish on its way through the layers.

    No function within a function that calls itself: such a reference cycle would keep the payload until the next
    garbage collection.
    """

    __slots__ = ("_begun", "_publication", "_write", "_written")

    def __init__(self, publication: Publication, write: Callable[[tuple[Outgoing, ...]], T]) -> None:
        self._publication = publication
        self._write = write
        self._begun = False
        self._written: tuple[T, ...] = ()

    def enter(self, layer: Callable[..., object], call_next: Callable[[object], T], given: object) -> T:
        """Call a layer with what the one before has handed on."""
        layer(self._checked(given), call_next)
        if not self._begun:
            raise ConfigurationError(
                "a publish middleware returned without call_next(publication), so nothing was published: raise an "
                "exception to refuse a message"
            )
        # A layer that hides an exception of the write would leave no result.
        if not self._written:
            raise ConfigurationError("a publish middleware hid the error of the publish: let it raise")
        return self._written[0]

    def write(self, given: object) -> T:
        """Write what the last layer has handed on."""
        messages = self._checked(given).messages
        # Ids are made inside: a second write would be a second message, also where the first one's outcome is unknown.
        if self._begun:
            raise ConfigurationError("a publish middleware called call_next twice: publish a second message instead")
        self._begun = True
        result = self._write(messages)
        self._written = (result,)
        return result

    def _checked(self, given: object) -> Publication:
        return self._publication if given is self._publication else _checked(self._publication, given)


def _checked(publication: Publication, given: object) -> Publication:
    if not isinstance(given, Publication):
        raise ConfigurationError(f"call_next takes a lanelog.Publication, not {type(given).__name__}")
    if given.topic != publication.topic or given.schedule != publication.schedule:
        raise ConfigurationError("a publish middleware must not change the topic or the schedule")
    if len(given.messages) != len(publication.messages):
        raise ConfigurationError(
            f"a publish middleware must keep the number of messages: {len(publication.messages)} came in, "
            f"{len(given.messages)} were handed on"
        )
    for message in given.messages:
        if not isinstance(message, Outgoing):
            raise ConfigurationError(f"a publication has messages of lanelog.Outgoing, not {type(message).__name__}")
    return given
