"""Events of a page that are decoded as late as possible: while the next page is on its way."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from postbus.events import Event, GlobalSequence


class LateEvents(Sequence[Event]):
    """As a list, and made into one when somebody looks at the first of them.

    >>> from datetime import UTC, datetime
    >>> NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> types = ["order.placed", "order.shipped"]
    >>> events = LateEvents(
    ...     [7, 8], types, lambda: [Event(id=type, type=type, created_at=NOON) for type in types]
    ... )
    >>> len(events), events[1].type
    (2, 'order.shipped')
    """

    def __init__(
        self, numbers: Sequence[GlobalSequence], types: Iterable[str], decode: Callable[[], list[Event]]
    ) -> None:
        self._decode: Callable[[], list[Event]] | None = decode
        self._decoded: list[Event] = []
        self.numbers = numbers
        """Where they are in the log."""
        self.types = set(types)
        """The types that there are among them."""

    def __len__(self) -> int:
        """How many there are is known without looking at them."""
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """One of them, or some."""
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        """One after the other."""
        return iter(self._events)

    def __eq__(self, other: object) -> bool:
        """As lists are compared."""
        return self._events == (other._events if isinstance(other, LateEvents) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """As that of a list."""
        return repr(self._events)

    @property
    def _events(self) -> list[Event]:
        if self._decode is not None:
            # What they were decoded from goes at once.
            self._decoded, self._decode = self._decode(), None
        return self._decoded


def types_of(events: Sequence[Event]) -> set[str]:
    """Which types there are among the events."""
    return events.types if isinstance(events, LateEvents) else {event.type for event in events}
