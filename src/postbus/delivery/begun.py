"""A coroutine whose first step was taken already, to be awaited from there on."""

from collections.abc import Coroutine, Generator
from typing import Any


class Begun:
    """What is left of a coroutine that waits for something; awaited in the task in which it began."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, object], waits_for: Any) -> None:
        """*waits_for*: what the first send() has returned."""
        self._coroutine, self._waits_for = coroutine, waits_for

    def __await__(self) -> Generator[Any, Any, object]:
        """As `yield from` would, had it begun with the coroutine."""
        coroutine, waits_for = self._coroutine, self._waits_for
        while True:
            answer = error = None
            try:
                answer = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:
                error = raised
            # Not where it was caught: there it would be the context of whatever the coroutine raises.
            try:
                waits_for = coroutine.send(answer) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value
