"""A projection and a saga that remember the numbers of the events that they got."""

from collections.abc import Awaitable, Callable

from postbus import Event, Projection, Saga, SagaContext, StateStore
from tests.durable_model.model import ANSWERED, ANSWERING, is_answered

# Takes the subscriber's id and the event; raises if the attempt fails.
Attempt = Callable[[str, Event], Awaitable[None]]


class Numbers(Projection[list[int]]):
    """Keeps the numbers of the events that it got, in their order."""

    def __init__(
        self, id: str, patterns: tuple[str, ...], states: StateStore[list[int]], attempt: Attempt
    ) -> None:
        self.subscriber_id, self.patterns, self._attempt = id, patterns, attempt
        super().__init__(states)

    async def apply(self, state: list[int] | None, event: Event) -> list[int]:
        await self._attempt(self.subscriber_id, event)
        return [*(state or []), number_of(event)]


class Answers(Saga[list[int]]):
    """Answers some of the events, and keeps the numbers of all."""

    subscriber_id = ANSWERING
    patterns = ("order.*",)

    def __init__(self, states: StateStore[list[int]], attempt: Attempt) -> None:
        self._attempt = attempt
        super().__init__(states)

    def saga_id(self, event: Event) -> str:
        return event.stream_id or "none"

    async def handle(self, state: list[int] | None, event: Event, ctx: SagaContext) -> list[int]:
        if is_answered(number_of(event)):
            ctx.publish(ANSWERED, {"of": number_of(event)})
        await self._attempt(ANSWERING, event)
        return [*(state or []), number_of(event)]


def number_of(event: Event) -> int:
    """Its global sequence, as a plain number."""
    assert event.global_sequence is not None
    return int(event.global_sequence)
