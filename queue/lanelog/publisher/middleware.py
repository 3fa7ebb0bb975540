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
    return _Layered(layers, publication, write).enter(0, publication)


class _Layered(Generic[T]):
    """One publish on its way through the layers. Not a function in a function, which would be a circle of references.

    Such a circle keeps the payload until the next garbage collection.
    """

    __slots__ = ("_begun", "_layers", "_publication", "_write", "_written")

    def __init__(
        self,
        layers: Sequence[Callable[..., object]],
        publication: Publication,
        write: Callable[[tuple[Outgoing, ...]], T],
    ) -> None:
        self._layers = layers
        self._publication = publication
        self._write = write
        self._written: list[T] = []
        self._begun = False

    def enter(self, depth: int, given: object) -> T:
        """Call the layer at `depth` with what the one before handed on, or write."""
        publication, layers = self._publication, self._layers
        checked = publication if given is publication else _checked(publication, given)
        if depth == len(layers):
            # Ids are made inside: a second write would be a second message, also where the first one's outcome is
            # unknown.
            if self._begun:
                raise ConfigurationError(
                    "a publish middleware called call_next twice: publish a second message instead"
                )
            self._begun = True
            self._written.append(self._write(checked.messages))
            return self._written[0]
        layers[depth](checked, partial(self.enter, depth + 1))
        if not self._begun:
            raise ConfigurationError(
                "a publish middleware returned without call_next(publication), so nothing was published: raise an "
                "exception to refuse a message"
            )
        # A layer that hides an exception of the write would leave no result.
        if not self._written:
            raise ConfigurationError("a publish middleware hid the error of the publish: let it raise")
        return self._written[0]


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
