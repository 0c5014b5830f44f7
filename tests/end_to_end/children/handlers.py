"""The handlers of the children: one for every way an event can go."""

from postbus import Event, EventBus
from tests.end_to_end.fast_clock import NO_TIMEOUT, FastClock
from tests.end_to_end.history import DELIVERED, History


def make_bus(path: str, history: History) -> EventBus:
    """A bus that retries at once, with a handler for ok.*, flaky.* and poison.*."""
    bus = EventBus(path, clock=FastClock(), handler_timeout=NO_TIMEOUT, shutdown_timeout=NO_TIMEOUT)

    @bus.on("ok.*")
    async def succeed(event: Event) -> None:
        history.note(DELIVERED, event.id)

    @bus.on("flaky.*")
    async def fail_once(event: Event) -> None:
        if event.retry_count == 0:
            raise ConnectionError("the first attempt always fails")
        history.note(DELIVERED, event.id)

    @bus.on("plain.*")
    def succeed_in_a_thread(event: Event) -> None:
        history.note(DELIVERED, event.id)

    @bus.on("poison.*")
    async def fail_always(event: Event) -> None:
        raise ValueError("nobody can process this")

    return bus
