"""Events that several subscribers share: each gets its own, so that one may change a payload at will."""

from collections.abc import Iterator, Sequence
from gc import is_tracked
from typing import overload

import msgspec
from msgspec.structs import force_setattr

from postbus.events import Event

_CONTAINERS = (dict, list)


class OwnCopies(Sequence[Event]):
    """Events that others have as well: whoever looks at some of them gets copies of these.

    Not of a whole page at once: it would hold up the event loop for a millisecond, and so many new objects
    are neither in the processor's caches when their turn comes nor spared by the garbage collector.

    >>> from datetime import UTC, datetime
    >>> page = [Event(id="1", type="a", payload={"b": 1}, created_at=datetime.now(UTC))]
    >>> mine = OwnCopies(page)
    >>> mine[0] == page[0], mine[0].payload is page[0].payload
    (True, False)
    """

    def __init__(self, shared: Sequence[Event]) -> None:
        self.shared = shared
        """Those that all have: to look at, not to hand out."""

    def __len__(self) -> int:
        """How many there are is known without a copy."""
        return len(self.shared)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> "OwnCopies": ...
    def __getitem__(self, index: int | slice) -> "Event | OwnCopies":
        """A copy of one of them, or some that are not copied yet."""
        if isinstance(index, slice):
            return OwnCopies(self.shared[index])
        return own_copies([self.shared[index]])[0]

    def __iter__(self) -> Iterator[Event]:
        """A copy of each."""
        return iter(own_copies(self.shared))

    def __eq__(self, other: object) -> bool:
        """As lists are compared."""
        return self.shared == (other.shared if isinstance(other, OwnCopies) else other)

    __hash__ = None  # type: ignore[assignment]


def own_copies(events: Sequence[Event]) -> list[Event]:
    """The same events, with nothing in common that could be changed.

    >>> from datetime import UTC, datetime
    >>> event = Event(id="1", type="a", payload={"b": [1]}, created_at=datetime.now(UTC))
    >>> [mine] = own_copies([event])
    >>> mine.payload["b"].append(2)
    >>> event.payload
    {'b': [1]}
    """
    # Every subscriber at the head lives on this function.
    copies = [event.__copy__() for event in events]  # type: ignore[attr-defined]
    nested = []
    for mine in copies:
        payload = mine.payload
        if type(payload) in _CONTAINERS:
            if is_tracked(payload):
                nested.append(mine)
            else:
                # A dict that the garbage collector does not look at holds no other container.
                force_setattr(mine, "payload", payload.copy())
        if mine.metadata is not None:
            force_setattr(mine, "metadata", dict(mine.metadata))
    # Of what was JSON it makes a deep copy.
    payloads = msgspec.to_builtins([mine.payload for mine in nested])
    for mine, payload in zip(nested, payloads, strict=True):
        force_setattr(mine, "payload", payload)
    return copies
