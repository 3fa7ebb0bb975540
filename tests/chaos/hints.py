"""What becomes of hints in a chaos run: they are sent, not sent, or dropped at random, as the seed says.

Owns the draw and the dropping, which a program of the run switches on in its own process. Judges nothing: the history
of a run has to be the same whatever becomes of hints.
"""

import random
from collections.abc import Collection
from typing import Final, Literal

from lanelog._hints import receiver, sender
from lanelog._hints.datagram import Hint
from lanelog._hints.route import Target

Hints = Literal["on", "dropped", "off", "lost"]

DROPPED: Final[dict[Hints, float]] = {"on": 0.0, "dropped": 0.3, "off": 0.0, "lost": 1.0}
"""The share of datagrams that is dropped before the socket sends it, and of the rest after the socket received it."""


def of_seed(seed: int) -> Hints:
    """What becomes of hints in the run of a seed: four seeds in a row have all of it."""
    return tuple(DROPPED)[seed % len(DROPPED)]


def switch(hints: Hints, name: str) -> bool:
    """Drop datagrams in this process, in an order that depends on its name; the `wake` of its client."""
    share, dice = DROPPED[hints], random.Random(f"hints {name}")
    if share:
        deliver, unpack = sender.deliver, receiver.unpack

        def deliver_some(targets: Collection[Target], hint: Hint) -> int:
            return deliver([target for target in targets if dice.random() >= share], hint)

        def unpack_some(datagram: bytes, token: int) -> Hint | None:
            return None if dice.random() < share else unpack(datagram, token)

        sender.deliver = deliver_some
        receiver.unpack = unpack_some
    return hints != "off"
