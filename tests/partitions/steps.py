"""Instances of a partitioned subscriber, what they process, and who has which part."""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from postbus.delivery.parts.layout_change import group_of
from postbus.events import Part, SubscriberId
from postbus.policy.partitions import part_id
from postbus.stores.postgres.store import PgEventStore
from tests.gaps.steps import soon as soon
from tests.patience import PATIENCE

ID = "mail"


class Handled(NamedTuple):
    """An event that an instance has processed."""

    instance: str
    stream: str | None
    sequence: int


class History:
    """What was processed, in the order in which it was, by all instances of this process."""

    def __init__(self) -> None:
        self.handled: list[Handled] = []

    @property
    def sequences(self) -> list[int]:
        """The numbers of the events, in the order in which they were processed."""
        return [each.sequence for each in self.handled]

    def by(self, instance: str) -> list[Handled]:
        """What one instance has processed."""
        return [each for each in self.handled if each.instance == instance]

    def clear(self) -> None:
        """Begin anew."""
        self.handled.clear()

    def handler(
        self, instance: str, seconds: float | Callable[[Event], float] = 0.0
    ) -> Callable[[Event], Awaitable[None]]:
        """Takes its time, and notes what it has processed."""

        async def handle(event: Event) -> None:
            await asyncio.sleep(seconds(event) if callable(seconds) else seconds)
            self.note(instance, event)

        return handle

    def note(self, instance: str, event: Event) -> None:
        """An instance has processed this event."""
        self.handled.append(Handled(instance, event.stream_id, event.global_sequence or 0))

    def check_order(self) -> None:
        """Each stream was processed in its order."""
        check_order(self.handled)


def check_order(handled: Sequence[Handled]) -> None:
    """In each stream every number is higher than all before it."""
    last: dict[str | None, int] = defaultdict(int)
    for each in handled:
        if each.stream is not None:
            assert each.sequence > last[each.stream], f"{each} came after {last[each.stream]}"
            last[each.stream] = each.sequence


def check_once(sequences: Iterable[int], expected: Iterable[int]) -> None:
    """Nothing was lost and nothing came twice."""
    counts = Counter(sequences)
    lost, twice = set(expected) - set(counts), {each for each, count in counts.items() if count > 1}
    assert not lost, f"lost: {sorted(lost)}"
    assert not twice, f"twice: {sorted(twice)}"


def make_bus(
    dsn: str,
    handler: Any,
    partitions: int = 8,
    *,
    id: str = ID,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> PgEventBus:
    """A bus with one subscriber."""
    settings.setdefault("poll_interval", 0.1)
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(**settings))
    bus.subscribe("*", handler, id=id, partitions=partitions, **options or {})
    return bus


class Parts:
    """Who has which part, as the server knows."""

    def __init__(self, store: PgEventStore) -> None:
        self._store = store

    async def holders(self, count: int = 8, id: str = ID) -> list[int | None]:
        """Whose session has each part."""
        ids = [SubscriberId(part_id(id, Part(index, count))) for index in range(count)]
        return await self._store.members.holders(ids)

    async def members(self, count: int = 8) -> list[int]:
        """Who takes part in this layout."""
        return await self._store.members.list(group_of(ID, count))

    async def spread(self, count: int = 8) -> list[int]:
        """How many parts each instance has that has any, the most first; those that nobody has, last."""
        counts = Counter(await self.holders(count))
        free = counts.pop(None, 0)
        return sorted(counts.values(), reverse=True) + ([-free] if free else [])

    async def until(self, *expected: int, count: int = 8, within: float = PATIENCE) -> float:
        """Wait until the parts are spread like this; how many seconds that took."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        spread: list[int] = []
        try:
            async with asyncio.timeout(within):
                while (spread := await self.spread(count)) != list(expected):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(
                f"the spread is {spread} and not {list(expected)} after {within} s"
            ) from None
        return loop.time() - began_at


@asynccontextmanager
async def parts_of(dsn: str) -> AsyncIterator[Parts]:
    """Look at the locks for the length of the block."""
    async with PgEventStore(dsn) as store:
        yield Parts(store)


async def publish(bus: PgEventBus, count: int, streams: int = 20, prefix: str = "s") -> list[int]:
    """So many events, in turn in so many streams; their numbers."""
    before = await bus.store.head()
    ids = {await bus.publish("test.done", at, stream_id=f"{prefix}-{at % streams}") for at in range(count)}
    events = await bus.store.read_all(after=before, limit=100 * count)
    numbers = [event.global_sequence or 0 for event in events if event.id in ids]
    assert len(numbers) == count
    return numbers


@asynccontextmanager
async def publishing(bus: PgEventBus, streams: int = 37) -> AsyncIterator[list[int]]:
    """Publish for the length of the block, in so many streams; afterwards the numbers of all events."""
    numbers: list[int] = []

    async def go_on() -> None:
        for at in itertools.count():
            stream_id = f"s-{at % streams}"
            await bus.publish("test.done", at, stream_id=stream_id)

    before = await bus.store.head()
    task = asyncio.ensure_future(go_on())
    try:
        yield numbers
        assert not task.done(), "publishing has failed"
    finally:
        task.cancel()
        await asyncio.wait([task])
        numbers += range(before + 1, await bus.store.head() + 1)


async def look(dsn: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement, past postbus."""
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(query, *values)]
    finally:
        await connection.close()


async def partitions_of(dsn: str, id: str = ID) -> int:
    """How many parts the subscriber has by now."""
    rows = await look(
        dsn, "SELECT partitions FROM postbus.event_bus_checkpoints WHERE subscriber_id = $1", id
    )
    return int(rows[0][0]) if rows else 0


async def until_partitions(dsn: str, expected: int, within: float = PATIENCE) -> None:
    """Wait until the subscriber has so many parts."""
    found = 0
    try:
        async with asyncio.timeout(within):
            while (found := await partitions_of(dsn)) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"there are {found} partitions and not {expected} after {within} s") from None
