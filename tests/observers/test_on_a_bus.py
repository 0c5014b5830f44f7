"""On a bus, the state, the published events and the checkpoint of an observer go together."""

from collections.abc import Callable
from typing import Any

import pytest

from postbus import Event, EventBus, Projection, RetryPolicy, Saga, SagaContext
from postbus.clock import SystemClock
from postbus.events import DeadLetter
from postbus.observers import StateStore
from postbus.ports import Store
from tests.contracts.steps import BEGINNING
from tests.durable.steps import DATABASES, Database

Document = dict[str, Any]
MakeStore = Callable[[], Store]

AT_ONCE = RetryPolicy(max_retries=1, base_delay=0)


@pytest.fixture(params=DATABASES)
def any_database(request: pytest.FixtureRequest) -> Database:
    """A database of each kind, perhaps with something of earlier tests in it."""
    return DATABASES[request.param](request, SystemClock())


@pytest.fixture
async def make_store(any_database: Database) -> MakeStore:
    """Opens the same database every time."""
    await any_database.empty()
    return any_database.new_store


class Tally(Projection[Document]):
    """Counts the events of each stream, and changes the state that it was given."""

    subscriber_id = "projection:tally"
    patterns = ("order.*",)
    failures_left = 0

    def apply(self, state: Document | None, event: Event) -> Document | None:
        if event.type == "order.closed":
            return None
        counts = state or {"count": 0}
        counts["count"] += 1
        if self.failures_left:
            self.failures_left -= 1
            raise ValueError("not today")
        return counts


class Answer(Saga[Document]):
    """Answers every question, and fails at hard ones after it has answered."""

    subscriber_id = "saga:answer"
    patterns = ("question.*",)

    def saga_id(self, event: Event) -> str | None:
        return event.stream_id

    async def handle(self, state: Document | None, event: Event, ctx: SagaContext) -> Document | None:
        ctx.publish("answer.given", event.payload, stream_id="answers")
        if event.type == "question.hard":
            raise ValueError("too hard")
        return {"answered": (state or {"answered": 0})["answered"] + 1}


async def dead_letters(bus: EventBus) -> list[DeadLetter]:
    return (await bus.store.dead_letters.page(10, 0, None)).events


async def types_in(bus: EventBus) -> list[str]:
    return [event.type for event in (await bus.store.log.read(BEGINNING, 100, None)).events]


async def test_a_projection_counts_every_event_once_over_restarts(make_store: MakeStore) -> None:
    counts: list[tuple[str, Document]] = []
    for _ in range(3):
        bus = EventBus(make_store())
        states = StateStore(bus.store, "tally")
        bus.subscribe(Tally(states))
        async with bus:
            await bus.publish("order.placed", stream_id="order-1")
            await bus.publish("order.paid", stream_id="order-1")
            await bus.publish("order.placed", stream_id="order-2")
            await bus.publish("user.created", stream_id="order-2")
            await bus.subscription("projection:tally").caught_up(timeout=30)
            counts = [item async for item in states.items()]

    assert counts == [("order-1", {"count": 6}), ("order-2", {"count": 3})]


async def test_a_projection_that_returns_none_has_no_state(make_store: MakeStore) -> None:
    bus = EventBus(make_store())
    states = StateStore(bus.store, "tally")
    bus.subscribe(Tally(states))
    async with bus:
        await bus.publish("order.placed", stream_id="order-1")
        await bus.publish("order.closed", stream_id="order-1")
        await bus.subscription("projection:tally").caught_up(timeout=30)

        assert [item async for item in states.items()] == []


async def test_a_failed_attempt_leaves_no_trace_in_the_state(make_store: MakeStore) -> None:
    """Although apply had changed the very object it was given: the next attempt gets another one."""
    bus = EventBus(make_store())
    states = StateStore(bus.store, "tally")
    tally = Tally(states)
    bus.subscribe(tally, retry=AT_ONCE)
    async with bus:
        await bus.publish("order.placed", stream_id="order-1")
        await bus.subscription("projection:tally").caught_up(timeout=30)
        tally.failures_left = 1
        await bus.publish("order.paid", stream_id="order-1")
        await bus.subscription("projection:tally").caught_up(timeout=30)

        assert await states.get("order-1") == {"count": 2}


async def test_what_a_saga_publishes_is_in_the_log_with_its_cause(make_store: MakeStore) -> None:
    bus = EventBus(make_store())
    states = StateStore(bus.store, "answers")
    bus.subscribe(Answer(states))
    async with bus:
        question = await bus.publish("question.easy", {"text": "why?"}, stream_id="q-1")
        await bus.subscription("saga:answer").caught_up(timeout=30)
        (answer,) = await bus.store.log.read_stream("answers", 1, None)

        assert (answer.type, answer.payload) == ("answer.given", {"text": "why?"})
        assert (answer.correlation_id, answer.causation_id) == (question, question)
        assert await states.get("q-1") == {"answered": 1}


async def test_a_saga_that_raises_has_published_nothing(make_store: MakeStore) -> None:
    """Its state is as before, and its event a dead letter."""
    bus = EventBus(make_store())
    states = StateStore(bus.store, "answers")
    bus.subscribe(Answer(states), retry=AT_ONCE)
    async with bus:
        await bus.publish("question.easy", stream_id="q-1")
        hard = await bus.publish("question.hard", stream_id="q-1")
        await bus.subscription("saga:answer").caught_up(timeout=30)

        assert sorted(await types_in(bus)) == ["answer.given", "question.easy", "question.hard"]
        assert await states.get("q-1") == {"answered": 1}
        assert [(letter.id, letter.subscriber_id) for letter in await dead_letters(bus)] == [
            (hard, "saga:answer")
        ]


class Odd(Tally):
    """Names keys and makes states as its events tell it."""

    def state_key(self, event: Event) -> str | None:
        return event.payload["key"]  # type: ignore[no-any-return]

    def apply(self, state: Document | None, event: Event) -> Document | None:
        return event.payload["state"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"key": "", "state": {}}, "InvalidStateError: state store 'odd': the key '' is empty"),
        ({"key": 5, "state": {}}, "InvalidStateError: state store 'odd': the key 5 is of type int"),
        ({"key": "a", "state": []}, "InvalidStateError: state store 'odd': the state is of type list"),
        ({"key": "broken", "state": {}}, "StateTypeError: a state in state store 'odd' is no dict"),
    ],
)
async def test_a_key_or_state_that_is_not_usable_makes_a_dead_letter_that_says_so(
    make_store: MakeStore, payload: Document, error: str
) -> None:
    """And the next event is served."""
    bus = EventBus(make_store())
    states = StateStore(bus.store, "odd")
    bus.subscribe(Odd(states), retry=AT_ONCE)
    async with bus:
        await bus.store.states.put("odd", "broken", b"[1]")
        await bus.publish("order.placed", payload)
        await bus.publish("order.placed", {"key": "fine", "state": {"a": 1}})
        await bus.publish("order.placed", {"key": None, "state": "of nobody's business"})
        await bus.subscription("projection:tally").caught_up(timeout=30)
        (letter,) = await dead_letters(bus)

        assert error in letter.errors[-1]
        assert await states.get("fine") == {"a": 1}
