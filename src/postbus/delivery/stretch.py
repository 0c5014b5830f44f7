"""Events that go to their handler one right after the other."""

from collections.abc import Sequence

from postbus.events import Event


class Stretch:
    """From *index* to *end* of the events; what is before *index* is processed.

    Whoever delivers only moves the index. Whoever needs to know what was processed looks at it then: once
    for many events, instead of after each.
    """

    __slots__ = ("end", "events", "index", "noted")

    def __init__(self, events: Sequence[Event], index: int, end: int) -> None:
        self.events, self.index, self.end = events, index, end
        self.noted = index
        """The events before it were taken note of."""

    def take_new(self) -> Sequence[Event]:
        """Those that were processed since the last time."""
        new = self.events[self.noted : self.index]
        self.noted = self.index
        return new
