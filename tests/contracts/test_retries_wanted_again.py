"""ports.DeadLetterStore: who asks for a retry while one is under way gets another, should that one fail."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from postbus import Event, EventBus
from postbus.events import Checkpoint, DeadLetter, Progress, RetryOutcome
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import Backend, open_store
from tests.contracts.steps import BEGINNING, MAIL, NOON, START, append, bury, make_draft
from tests.patience import PATIENCE

Wish = Callable[[Store, DeadLetter], Awaitable[object]]

WISHES: dict[str, Wish] = {
    "by its id": lambda store, dead: store.dead_letters.revive(dead.dead_letter_id),
    "by its event": lambda store, dead: store.dead_letters.revive(dead.id),
    "all": lambda store, _: store.dead_letters.revive_all(None, None),
    "all of a type": lambda store, dead: store.dead_letters.revive_all(dead.type, None),
    "all of a subscriber": lambda store, _: store.dead_letters.revive_all(None, MAIL),
    "all of a type and a subscriber": lambda store, dead: store.dead_letters.revive_all(dead.type, MAIL),
}


class _Wanted:
    """A dead letter, and the subscriber whose it is."""

    def __init__(self, store: Store, owner: Checkpoint, dead: DeadLetter) -> None:
        self.store, self.owner, self.dead = store, owner, dead

    async def revive(self) -> None:
        await self.store.dead_letters.revive(self.dead.dead_letter_id)

    async def read(self) -> list[DeadLetter]:
        return await self.store.dead_letters.wanted_retries(MAIL, 10)

    async def end(self, letter: DeadLetter, error: str | None) -> None:
        """What became of a retry of the letter as it was read."""
        await self.store.checkpoints.save(
            Progress(
                subscriber_id=MAIL,
                epoch=self.owner.epoch,
                position=START,
                retries=[RetryOutcome(letter.dead_letter_id, error)],
            )
        )


async def _bury_one(store: Store) -> _Wanted:
    owner = await store.checkpoints.claim(MAIL, BEGINNING)
    (event,) = await append(store, make_draft())
    return _Wanted(store, owner, await bury(store, owner, event))


@pytest.fixture
async def wanted(store: Store) -> _Wanted:
    """A dead letter that nobody wants retried yet."""
    return await _bury_one(store)


class TestFailure:
    @pytest.mark.parametrize("again", WISHES)
    @pytest.mark.parametrize("seconds_later", [0, 1])
    async def test_it_ends_only_the_wish_that_it_answers(
        self, wanted: _Wanted, clock: ManualClock, again: str, seconds_later: int
    ) -> None:
        """However soon after it the next one came, and in whichever words."""
        await wanted.revive()
        (letter,) = await wanted.read()
        await clock.advance(seconds_later)
        await WISHES[again](wanted.store, wanted.dead)
        await wanted.end(letter, "old code")

        (letter,) = await wanted.read()
        assert letter == await wanted.store.dead_letters.get(wanted.dead.dead_letter_id)
        assert letter.errors == ["boom", "old code"]
        await wanted.end(letter, "new code")
        assert await wanted.read() == []

    async def test_several_wishes_meanwhile_are_one(self, wanted: _Wanted) -> None:
        """Whoever is impatient gets one more attempt."""
        await wanted.revive()
        (letter,) = await wanted.read()
        for _ in range(3):
            await wanted.revive()
        await wanted.end(letter, "old code")
        (letter,) = await wanted.read()
        await wanted.end(letter, "new code")

        assert await wanted.read() == []

    async def test_a_wish_that_was_read_twice_ends_once(self, wanted: _Wanted) -> None:
        """As by an owner that stopped before it came to it."""
        await wanted.revive()
        await wanted.read()
        (letter,) = await wanted.read()
        await wanted.end(letter, "again")

        assert await wanted.read() == []

    async def test_one_that_was_resolved_meanwhile_is_not_wanted_any_more(self, wanted: _Wanted) -> None:
        """Whatever was wished before."""
        await wanted.revive()
        (letter,) = await wanted.read()
        await wanted.revive()
        await wanted.store.dead_letters.resolve(letter.dead_letter_id, "anna", None)
        await wanted.end(letter, "old code")

        assert await wanted.read() == []


class TestSuccess:
    async def test_it_resolves_whatever_was_wished_meanwhile(self, wanted: _Wanted) -> None:
        """What was wanted is done."""
        await wanted.revive()
        (letter,) = await wanted.read()
        await wanted.revive()
        await wanted.end(letter, None)

        assert await wanted.read() == []
        assert (await wanted.store.dead_letters.page(10, 0, None)).total == 0


class _SetClock(ManualClock):
    """A clock that people set."""

    moment = NOON

    def now(self) -> datetime:
        return self.moment


async def test_a_clock_that_was_set_back_makes_no_two_wishes_alike(backend: Backend) -> None:
    """A third wish at the moment of the first, which is being answered."""
    clock = _SetClock()
    async with open_store(backend, clock) as store:
        wanted = await _bury_one(store)
        await wanted.revive()
        (letter,) = await wanted.read()
        for moment in (NOON + timedelta(hours=1), NOON):
            clock.moment = moment
            await wanted.revive()
        await wanted.end(letter, "old code")

        assert len(await wanted.read()) == 1


async def test_a_bus_makes_the_attempt_that_was_asked_for_during_another(backend: Backend) -> None:
    """With the code that was mended meanwhile."""
    calls: list[str] = []
    is_mended, is_inside, goes_on, is_done = False, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Event) -> None:
        calls.append("new code" if is_mended else "old code")
        if len(calls) == 2:
            is_inside.set()
            await goes_on.wait()
        if calls[-1] == "old code":
            raise ValueError
        is_done.set()

    clock = ManualClock(auto_advance=True)
    async with asyncio.timeout(PATIENCE), backend.new_store(clock) as store:
        bus = EventBus(store, clock=clock, noise=lambda: 0.0)
        bus.subscribe("*", handle, id=MAIL, retry={"max_retries": 0})
        async with bus:
            event_id = await bus.publish("order.placed")
            await bus.idle()
            await bus.dlq.retry(event_id)
            await is_inside.wait()
            await bus.dlq.retry(event_id)
            is_mended = True
            goes_on.set()
            await is_done.wait()
            await bus.idle()

    assert calls == ["old code", "old code", "new code"]


@pytest.mark.parametrize("error", [None, "again"])
async def test_what_was_resolved_during_the_retry_stays_as_it_is(wanted: _Wanted, error: str | None) -> None:
    """Somebody has seen to it, and signed for it."""
    await wanted.revive()
    (letter,) = await wanted.read()
    await wanted.store.dead_letters.resolve(wanted.dead.dead_letter_id, "ann", "by hand")
    before = await wanted.store.dead_letters.get(wanted.dead.dead_letter_id)
    await wanted.end(letter, error)

    assert await wanted.store.dead_letters.get(wanted.dead.dead_letter_id) == before
    assert (before.resolved_by, before.notes) == ("ann", "by hand")
