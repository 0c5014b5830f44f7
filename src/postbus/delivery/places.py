"""How many events of the backlog may be begun and wait: for a back-off, or for a circuit breaker."""

from collections import Counter
from collections.abc import Callable, Hashable, Set


class Places:
    """A number of places for each set of handlers: those of one that fails do not hold up the others.

    Who comes when there is none is turned away, and so is everybody after it, until half of the places are
    free: then all may come again, in their order, and are called.
    """

    def __init__(self, most: int, on_room: Callable[[], None]) -> None:
        self._most, self._on_room = most, on_room
        self._taken: Counter[Hashable] = Counter()
        self._turned_away: set[Hashable] = set()
        self._called: set[Hashable] = set()

    def take_called(self) -> set[Hashable]:
        """Who may come again since this was asked last."""
        called, self._called = self._called, set()
        return called

    def are_turned_away(self, called: Set[Hashable]) -> bool:
        """Whether none of these may come any more."""
        return called <= self._turned_away

    def take(self, handlers: Hashable) -> bool:
        """Whether there was a place."""
        if handlers in self._turned_away or self._taken[handlers] >= self._most:
            self._turned_away.add(handlers)
            return False
        self._taken[handlers] += 1
        return True

    def give_back(self, handlers: Hashable) -> None:
        """Somebody needs its place no more."""
        self._taken[handlers] -= 1
        if handlers in self._turned_away and self._taken[handlers] <= self._most // 2:
            self._turned_away.discard(handlers)
            self._called.add(handlers)
            self._on_room()
        if not self._taken[handlers]:
            del self._taken[handlers]
