"""An observer that remembers what it got."""

import asyncio
from collections.abc import Sequence

from postbus.config import check_whole_number
from postbus.events import Event


class RecordingObserver:
    """A durable subscriber that only takes notes: bus.subscribe(RecordingObserver("test")).

    >>> from postbus.bus import EventBus
    >>> async def main() -> list[str]:
    ...     observer = RecordingObserver("test", patterns=["order.*"])
    ...     bus = EventBus("memory:")
    ...     bus.subscribe(observer)
    ...     async with bus:
    ...         await bus.publish("order.placed")
    ...         await bus.publish("user.created")
    ...         return [event.type for event in await observer.wait_for(1)]
    >>> asyncio.run(main())
    ['order.placed']
    """

    def __init__(self, subscriber_id: str, *, patterns: Sequence[str] = ("*",)) -> None:
        self.subscriber_id, self.patterns = subscriber_id, patterns
        self.events: list[Event] = []
        """What it got, in order; an event that came twice is there twice."""
        self._has_more = asyncio.Event()

    async def on_event(self, event: Event) -> None:
        """Remember the event."""
        self.events.append(event)
        self._has_more.set()

    async def wait_for(self, count: int, timeout: float = 5.0) -> list[Event]:
        """The events, once there are at least so many. TimeoutError after *timeout* real seconds."""
        check_whole_number("count", count, at_least=0)
        try:
            async with asyncio.timeout(timeout):
                while len(self.events) < count:
                    self._has_more.clear()
                    await self._has_more.wait()
        except TimeoutError:
            types = [event.type for event in self.events]
            raise TimeoutError(
                f"observer {self.subscriber_id!r} got {len(types)} events within {timeout:g} s, "
                f"expected {count}: {types}"
            ) from None
        return list(self.events)
