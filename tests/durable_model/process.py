"""A process with several durable subscribers, and its end: in good order or in the middle of anything."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from postbus import CheckpointMode, Event, EventBus, StateStore
from postbus.config import AnyCheckpointMode, ReliableDeliveryConfig
from postbus.events import GlobalSequence, LogPosition, SubscriberId
from postbus.ports import Store
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore
from postbus.testing import ManualClock
from tests.durable_model.dying_store import DiedError, Fate, dying
from tests.durable_model.model import (
    ANSWERING,
    MAX_ATTEMPTS,
    Model,
    Reign,
    Seen,
    Story,
    trouble_of,
)
from tests.durable_model.observers import Answers, Numbers, number_of

BATCH_SIZE = 3
SYNCHRONOUS, BATCHED, TRANSACTIONAL = "synchronous", "batched", "transactional"
PROJECTION, BATCHED_PROJECTION, SAGA = "projection", "batched-projection", ANSWERING
SUBSCRIBERS = (SYNCHRONOUS, BATCHED, TRANSACTIONAL, PROJECTION, BATCHED_PROJECTION, SAGA)

_MODES: dict[str, AnyCheckpointMode] = {
    SYNCHRONOUS: CheckpointMode.synchronous(),
    BATCHED: CheckpointMode.batched(BATCH_SIZE, 5.0),
    BATCHED_PROJECTION: CheckpointMode.batched(BATCH_SIZE, 5.0),
    SAGA: CheckpointMode.batched(BATCH_SIZE, 5.0),
}
_CONFIG = ReliableDeliveryConfig(max_retries=MAX_ATTEMPTS - 1, catch_up_batch_size=4)
# On a clock on which every wait is over at once, nothing may depend on how long it was.
_NO_TIMEOUT = 1e6
_TABLE = "CREATE TABLE IF NOT EXISTS effects (global_sequence INTEGER)"

T = TypeVar("T")


def new_stories() -> list[Story]:
    """Nobody has seen anything yet."""
    return [
        Story(SYNCHRONOUS, ("*",), 1),
        Story(BATCHED, ("order.*",), BATCH_SIZE),
        Story(TRANSACTIONAL, ("*",), 0, is_exact=True),
        Story(PROJECTION, ("order.placed", "user.*"), 1, is_exact=True),
        Story(BATCHED_PROJECTION, ("*",), BATCH_SIZE, is_exact=True),
        Story(SAGA, ("order.*",), BATCH_SIZE, is_exact=True),
    ]


class Process:
    """One life of a bus on a store."""

    def __init__(self, inner: Store, clock: ManualClock, model: Model, turn_seconds: float) -> None:
        self.inner, self._model, self._turn_seconds = inner, model, turn_seconds
        self.fate = Fate()
        self._paused: set[str] = set()
        self.bus = EventBus(
            dying(inner, self.fate, self._watch),
            config=_CONFIG,
            clock=clock,
            handler_timeout=_NO_TIMEOUT,
            shutdown_timeout=_NO_TIMEOUT,
            noise=lambda: 0.0,
        )
        self._log: dict[int, Event] = {}

    async def start(self) -> None:
        """Subscribe everybody, then begin."""
        await self.inner.open()
        self._make_table()
        for subscriber_id in SUBSCRIBERS:
            self.subscribe(subscriber_id)
        await self.unless_dead(self.bus.start())

    def subscribe(self, subscriber_id: str) -> None:
        """Subscribe one of them."""
        story, store = self._model.stories[subscriber_id], self.bus.store
        mode = _MODES.get(subscriber_id)
        if subscriber_id == TRANSACTIONAL:
            self.bus.subscribe("*", self._insert, id=subscriber_id)
        elif subscriber_id == SAGA:
            self.bus.subscribe(
                Answers(StateStore(store, SAGA, list[int]), self.attempt), checkpoint_mode=mode
            )
        elif subscriber_id in (PROJECTION, BATCHED_PROJECTION):
            states = StateStore(store, subscriber_id, list[int])
            self.bus.subscribe(
                Numbers(subscriber_id, story.patterns, states, self.attempt), checkpoint_mode=mode
            )
        else:

            async def handle(event: Event) -> None:
                await self.attempt(subscriber_id, event)

            (pattern,) = story.patterns
            self.bus.subscribe(pattern, handle, id=subscriber_id, checkpoint_mode=mode)

    async def pause(self, subscriber_id: str) -> None:
        """From when it returns on, nothing is delivered."""
        handle = self.bus.subscription(subscriber_id)
        await self.unless_dead(handle.pause())
        if handle.state == "paused":
            self._paused.add(subscriber_id)

    async def resume(self, subscriber_id: str) -> None:
        """Go on, paused or not."""
        self._paused.discard(subscriber_id)
        await self.bus.subscription(subscriber_id).resume()

    def resubscribe(self, subscriber_id: str) -> None:
        """The new subscription knows nothing of a pause of the old one."""
        self._paused.discard(subscriber_id)
        self.bus.unsubscribe(subscriber_id)
        self.subscribe(subscriber_id)

    async def attempt(self, subscriber_id: str, event: Event) -> None:
        """One attempt of a handler, which fails, ends the process or succeeds."""
        self._begin(subscriber_id, event)
        for _ in range(number_of(event) % 3):
            await asyncio.sleep(0)
        self._end(subscriber_id, event)

    async def unless_dead(self, operation: Coroutine[Any, Any, T]) -> T | None:
        """Its result, or None if the process has died meanwhile."""
        task, death = asyncio.ensure_future(operation), asyncio.ensure_future(self.fate.wait())
        await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if self.fate.is_dead:
            task.cancel()
            await asyncio.wait((task,))
            return None
        return await task

    async def run(self, turns: int) -> None:
        """Let everybody work for a while."""
        for _ in range(turns):
            if self.fate.is_dead:
                return
            await asyncio.sleep(self._turn_seconds)

    async def vanish(self) -> None:
        """What a kill leaves: nothing flushed, nothing released, but for what the system does itself."""
        self.fate.strike()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, stubborn = await asyncio.wait(tasks, timeout=20.0)
            assert not stubborn, f"tasks that can't be cancelled: {stubborn}"
            # They ended with the death of their process, and nobody else will ask.
            for task in tasks:
                if not task.cancelled():
                    task.exception()
        await self.inner.close()

    def describe(self) -> list[str]:
        """Where every subscriber is, for the message of a failure."""
        handles = [self.bus.subscription(subscriber_id) for subscriber_id in SUBSCRIBERS]
        return [
            f"{each.id} is {each.state} at {each.checkpoint} with a lag of {each.lag} ({each.reason})"
            for each in handles
        ]

    async def look(self) -> Seen:
        """What is in the store, asked past the process."""
        inner = self.inner
        positions = {
            str(point.subscriber_id): int(point.position) for point in await inner.checkpoints.list()
        }
        dead: dict[str, dict[int, int]] = {}
        for subscriber_id in SUBSCRIBERS:
            page = await inner.dead_letters.page(1000, 0, SubscriberId(subscriber_id))
            dead[subscriber_id] = {number_of(each): len(each.errors) for each in page.events}
        effects = {TRANSACTIONAL: self._read_effects()}
        for subscriber_id in (PROJECTION, BATCHED_PROJECTION, SAGA):
            states = StateStore(inner, subscriber_id, list[int])
            effects[subscriber_id] = [number async for _, found in states.items() for number in found]
        return Seen(positions, dead, effects, await self._read_log())

    def _begin(self, subscriber_id: str, event: Event) -> None:
        if self.fate.is_dead:
            raise DiedError
        self._check(lambda: self._check_not_paused(subscriber_id, event))
        trouble = trouble_of(event, subscriber_id)
        attempt = self._model.stories[subscriber_id].begin(number_of(event))
        if attempt <= trouble.kills:
            self.fate.strike()
            raise DiedError
        if attempt <= trouble.fails:
            raise ValueError(f"attempt {attempt} fails")

    def _check_not_paused(self, subscriber_id: str, event: Event) -> None:
        assert subscriber_id not in self._paused, f"{subscriber_id} is paused and gets {number_of(event)}"

    def _end(self, subscriber_id: str, event: Event) -> None:
        if self.fate.is_dead:
            raise DiedError
        self._model.stories[subscriber_id].end(number_of(event))

    def _insert(self, event: Event, transaction: sqlite3.Connection) -> None:
        self._begin(TRANSACTIONAL, event)
        transaction.execute("INSERT INTO effects VALUES (?)", (event.global_sequence,))

    async def _watch(
        self, name: str, call: Callable[..., Awaitable[Any]], *given: Any, **options: Any
    ) -> Any:
        """Make a call of the store, and see what becomes of subscribers by it."""
        if name == "checkpoints.save":
            (progress,) = given
            story = self._model.stories[progress.subscriber_id]
            log = await self._read_log()
            wanted = [
                number
                for number, event in log.items()
                if story.checked_up_to < number <= progress.position and story.wants(event.type)
            ]
            burials = [number_of(burial.event) for burial in progress.burials]
            was_fenced = story.reigns[-1].is_fenced
            if story.id == TRANSACTIONAL:
                story.handled.update(self._read_effects())
            self._check(lambda: story.check_moves_to(progress.position, wanted, burials))
            await call(*given)
            self._check(lambda: story.check_owner(was_fenced))
            story.bury(burials)
            return None
        result = await call(*given, **options)
        if name == "checkpoints.claim":
            self._model.stories[given[0]].reigns.append(Reign())
        elif name == "checkpoints.release":
            self._model.stories[given[0]].reigns[-1].release(self.fate.was_busy)
        elif name == "checkpoints.process":
            for event in given[2][: result.done_count]:
                self._model.stories[given[0]].end(number_of(event))
        return result

    def _check(self, check: Callable[[], None]) -> None:
        """A subscriber goes on whatever is raised in it: its process ends, so that the test notices."""
        try:
            check()
        except AssertionError as error:
            self._model.broken.append(error)
            self.fate.strike()
            raise DiedError from error

    async def _read_log(self) -> dict[int, Event]:
        while True:
            after = LogPosition(GlobalSequence(max(self._log, default=0)))
            page = await self.inner.log.read(after, 1000, None)
            if not page.events:
                return self._log
            self._log.update((number_of(event), event) for event in page.events)

    def _make_table(self) -> None:
        if isinstance(self.inner, InMemoryStore):
            self.inner.connection.execute(_TABLE)
        elif isinstance(self.inner, SQLiteStore):
            with closing(_connect(self.inner.path)) as connection:
                connection.execute(_TABLE)

    def _read_effects(self) -> list[int]:
        query = "SELECT global_sequence FROM effects ORDER BY rowid"
        if isinstance(self.inner, InMemoryStore):
            return [row[0] for row in self.inner.connection.execute(query)]
        assert isinstance(self.inner, SQLiteStore)
        with closing(_connect(self.inner.path)) as connection:
            return [row[0] for row in connection.execute(query)]


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10.0, isolation_level=None)
