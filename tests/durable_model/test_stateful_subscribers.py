"""Any order of publishes, failures, pauses, restarts and deaths: no durable subscriber loses an event."""

import asyncio
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never

import pytest
from hypothesis import example, given, settings

from postbus.events import NewEvent, SubscriberId
from postbus.ports import Store
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore
from postbus.testing import ManualClock
from tests.contracts.steps import BEGINNING
from tests.durable_model.commands import (
    BeBusy,
    Command,
    Crash,
    Fence,
    Item,
    LetTimePass,
    Pause,
    Publish,
    Restart,
    Resubscribe,
    Resume,
    RetryDeadLetters,
    Run,
    commands,
)
from tests.durable_model.model import FOR_EVER, Model
from tests.durable_model.process import (
    BATCHED_PROJECTION,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
    Process,
    new_stories,
)
from tests.patience import PATIENCE

# Generous: only a subscriber that waits for ever takes as long.
# Each event that kills its process does so once uncounted, then as often as it has attempts.
_MOST_LIVES = 200


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """Thousands of failed attempts are on purpose."""
    loggers = [logging.getLogger("postbus"), logging.getLogger("asyncio")]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger in loggers:
        logger.setLevel(logging.NOTSET)


class Course:
    """What happens to one database, from its first process to its last."""

    def __init__(self, folder: Path | None) -> None:
        self._clock = ManualClock(auto_advance=True)
        self._folder = folder
        self._memory = InMemoryStore(clock=self._clock)
        self._model = Model(new_stories())
        self._process = self._new_process()

    async def go_through(self, steps: Sequence[Command]) -> None:
        """One step after the other, then until everything has come to rest."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._go_through(steps)
        except TimeoutError:
            raise AssertionError(f"stuck: {self._process.describe()}") from None

    async def _go_through(self, steps: Sequence[Command]) -> None:
        await self._process.start()
        for step in steps:
            await self._take(step)
            await self._replace_the_dead()
            self._model.check(await self._process.look(), is_atomic=self._folder is None)
        await self._come_to_rest()
        self._model.check_end(await self._process.look())
        await self._process.bus.shutdown()
        self._check_released()

    async def _take(self, step: Command) -> None:
        process = self._process
        bus, fate = process.bus, process.fate
        match step:
            case Publish():
                await self._publish(step)
            case Run(turns):
                await process.run(turns)
            case Pause(subscriber_id):
                await process.pause(subscriber_id)
            case Resume(subscriber_id):
                await process.resume(subscriber_id)
            case Resubscribe(subscriber_id):
                process.resubscribe(subscriber_id)
            case Restart():
                await process.unless_dead(bus.shutdown())
                if not fate.is_dead:
                    self._check_released()
                    await self._begin_anew()
            case Crash(0):
                fate.strike()
            case Crash(call, after):
                fate.strike_at(call, after=after)
            case Fence(subscriber_id, releases):
                checkpoints, id = process.inner.checkpoints, SubscriberId(subscriber_id)
                claimed = await checkpoints.claim(id, BEGINNING)
                self._model.stories[subscriber_id].fence()
                if releases:
                    await checkpoints.release(id, claimed.epoch)
            case BeBusy(times):
                fate.be_busy(times)
            case RetryDeadLetters(subscriber_id):
                await process.inner.dead_letters.revive_all(None, SubscriberId(subscriber_id))
            case LetTimePass(seconds):
                await self._clock.sleep(seconds)
            case _:
                assert_never(step)

    async def _publish(self, step: Publish) -> None:
        bus = self._process.bus
        events = [NewEvent(item.type, dict(item.trouble), stream_id=item.stream_id) for item in step.items]
        if len(events) == 1:
            (new,) = events
            publishing = bus.publish(new.type, new.payload, stream_id=new.stream_id)
            event_id = await self._process.unless_dead(publishing)
            self._model.acknowledged.update([event_id] if event_id is not None else [])
        else:
            event_ids = await self._process.unless_dead(bus.publish_many(events))
            self._model.acknowledged.update(event_ids or [])

    async def _replace_the_dead(self) -> None:
        for _ in range(_MOST_LIVES):
            if not self._process.fate.is_dead:
                return
            await self._process.vanish()
            self._model.check_unbroken()
            await self._begin_anew()
        raise AssertionError(f"after {_MOST_LIVES} lives there is still an event that kills")

    async def _begin_anew(self) -> None:
        self._process = self._new_process()
        await self._process.start()

    async def _come_to_rest(self) -> None:
        """Until every subscriber has come to the end of the log, and nobody wants a retry."""
        self._process.fate.spare()
        while not await self._is_at_rest():
            await self._replace_the_dead()
            # For what is only looked at now and then.
            await self._clock.sleep(1.0)
            await self._process.run(1)

    async def _is_at_rest(self) -> bool:
        process = self._process
        head = await process.inner.log.head()
        for subscriber_id in SUBSCRIBERS:
            await process.resume(subscriber_id)
            await process.unless_dead(process.bus.subscription(subscriber_id).caught_up())
            if process.fate.is_dead:
                return False
            if await process.inner.dead_letters.wanted_retries(SubscriberId(subscriber_id), 1):
                return False
        return await process.inner.log.head() == head and not process.fate.is_dead

    def _check_released(self) -> None:
        for story in self._model.stories.values():
            for reign in story.reigns[-1:]:
                is_excused = reign.is_fenced or self._process.fate.was_busy
                assert reign.is_released or is_excused, f"{story.id} was not let go of"

    def _new_process(self) -> Process:
        store: Store = self._memory
        if self._folder is not None:
            store = SQLiteStore(self._folder / "events.db", synchronous="NORMAL", clock=self._clock)
        turn_seconds = 0.0 if self._folder is None else 0.0002
        return Process(store, self._clock, self._model, turn_seconds)


def _publish(count: int, **trouble: tuple[int, int]) -> Publish:
    return Publish((Item("order.placed", None, trouble),) * count)


# What was once wrong, and chance finds too seldom.
_TAKEN_OVER_WITH_STATES_UNWRITTEN = [
    _publish(2),
    Run(144),
    Fence(BATCHED_PROJECTION, releases=True),
    _publish(4),
    Run(144),
]
_RETRIED_AND_KILLS_AGAIN = [
    _publish(1, synchronous=(0, FOR_EVER), transactional=(0, FOR_EVER)),
    Run(144),
    RetryDeadLetters(SYNCHRONOUS),
    RetryDeadLetters(TRANSACTIONAL),
    Run(144),
]


@pytest.mark.timeout(240)
@settings(max_examples=100)
@example(_TAKEN_OVER_WITH_STATES_UNWRITTEN)
@example(_RETRIED_AND_KILLS_AGAIN)
@given(commands)
def test_in_memory_no_course_of_things_loses_an_event(steps: list[Command]) -> None:
    """All is processed or a dead letter, in order; repeated only after a death; effects exactly once."""
    asyncio.run(Course(None).go_through(steps))


@pytest.mark.timeout(240)
@settings(max_examples=15)
@given(commands)
def test_in_sqlite_no_course_of_things_loses_an_event(steps: list[Command]) -> None:
    """The same in a file, whose threads make the moments of death less regular."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Course(Path(folder)).go_through(steps))
