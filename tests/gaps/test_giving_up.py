"""What gap_policy="timeout" may give up: only numbers that a look at the log has just shown to be missing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from postbus.clock import SystemClock
from tests.gaps.steps import ID, Seen, Writer, soon, writer

_GAP_TIMEOUT = 5.0
# More than that, and less than what instances and handlers are allowed to take.
_LONG = 6.0
# Long enough for some looks.
_LOOKS = "SELECT pg_sleep(0.3)"


class JumpingClock(SystemClock):
    """The time of this machine, and whatever a test adds to it."""

    __slots__ = ("_added",)

    def __init__(self) -> None:
        self._added = 0.0

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return SystemClock.monotonic() + self._added

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        await self.until(self.monotonic() + seconds)

    async def until(self, deadline: float) -> None:
        """Return when monotonic() has reached *deadline*."""
        while (left := deadline - self.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, 0.02))

    def jump(self, seconds: float = _LONG) -> None:
        """So much time goes by at once."""
        self._added += seconds


class Holding(Seen):
    """Holds the events that it is told to until they are released, or fails them once."""

    def __init__(self, hold: int = 0, fail: int = 0) -> None:
        super().__init__()
        self.hold, self._fail = hold, fail
        self.begun: list[int] = []
        self.released = asyncio.Event()

    async def __call__(self, event: Event) -> None:
        """Note it when it is processed."""
        number = event.global_sequence or 0
        self.begun.append(number)
        if number == self._fail and self.begun.count(number) == 1:
            raise ValueError("once")
        if number == self.hold:
            await self.released.wait()
        await super().__call__(event)


@asynccontextmanager
async def giving_up(
    dsn: str, handler: Seen, clock: JumpingClock, way: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[PgEventBus]:
    """A bus whose only subscriber does not wait for gaps for longer than _GAP_TIMEOUT."""
    settings = {"poll_interval": 0.05, "gap_policy": "timeout", "gap_timeout": _GAP_TIMEOUT, **settings}
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(**settings), clock=clock)
    bus.subscribe("*", handler, id=ID, **way or {})
    async with bus:
        await bus.subscription(ID).caught_up()
        yield bus


async def check_nothing_is_late(bus: PgEventBus, clock: JumpingClock, b: Writer) -> None:
    """No number was given up, and no event became a dead letter for that."""
    # Events that are late are looked for now and then.
    clock.jump()
    await b.run(_LOOKS)
    given_up = await b.connection.fetch("SELECT first_sequence FROM postbus.event_bus_gap_timeouts")

    assert (await bus.dlq.list()).events == []
    assert given_up == []


@pytest.mark.parametrize("seconds_to_read", [0.0, 0.15])
async def test_what_is_committed_while_a_handler_takes_its_time_is_processed(
    postgres_dsn: str, seconds_to_read: float
) -> None:
    """The gap was filled long before it was overdue, and nobody had looked; however slow the store is."""
    clock, seen = JumpingClock(), Holding(hold=3)
    async with (
        giving_up(postgres_dsn, seen, clock) as bus,
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        _delay_reads(bus, seconds_to_read)
        await a.run("BEGIN")
        await a.insert()
        await b.insert()
        await soon(lambda: seen.numbers == [2])
        await b.run(_LOOKS)
        await b.insert()
        await soon(lambda: seen.begun == [2, 3])
        await a.run("COMMIT")
        clock.jump()
        await b.run(_LOOKS)
        seen.released.set()
        await soon(lambda: len(seen.numbers) == 3)

        assert seen.numbers == [2, 3, 1]
        await check_nothing_is_late(bus, clock, b)


async def test_what_is_committed_while_another_event_waits_for_its_next_attempt_is_processed(
    postgres_dsn: str,
) -> None:
    """A back-off may last longer than gap_timeout."""
    clock, seen = JumpingClock(), Holding(fail=3)
    async with (
        giving_up(postgres_dsn, seen, clock, initial_retry_delay=9.0) as bus,
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        await a.run("BEGIN")
        await a.insert()
        await b.insert()
        await soon(lambda: seen.numbers == [2])
        await b.run(_LOOKS)
        await b.insert()
        await soon(lambda: seen.begun == [2, 3])
        await a.run("COMMIT")
        clock.jump()
        await b.run(_LOOKS)
        clock.jump()
        await soon(lambda: len(seen.numbers) == 3)

        assert seen.numbers == [2, 3, 1]
        await check_nothing_is_late(bus, clock, b)


@pytest.mark.parametrize("way", [{}, {"partitions": 2}], ids=["alone", "partitions"])
async def test_the_event_at_hand_is_not_given_up(postgres_dsn: str, way: dict[str, Any]) -> None:
    """It has filled the gap in time, and its handler is not done when the time is up."""
    clock, seen = JumpingClock(), Holding(hold=1)
    async with (
        giving_up(postgres_dsn, seen, clock, way) as bus,
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
    ):
        await a.run("BEGIN")
        await a.insert()
        await b.insert()
        await soon(lambda: seen.numbers == [2])
        await b.run(_LOOKS)
        await a.run("COMMIT")
        await soon(lambda: seen.begun == [2, 1])
        clock.jump()
        await b.run(_LOOKS)
        seen.released.set()
        await soon(lambda: len(seen.numbers) == 2)

        assert seen.begun == [2, 1]
        await check_nothing_is_late(bus, clock, b)


async def test_a_pause_gives_nothing_up(postgres_dsn: str) -> None:
    """What was read before it and not processed is processed after it, and what nobody has read, too."""
    clock, seen = JumpingClock(), Holding(hold=1)
    async with (
        giving_up(postgres_dsn, seen, clock) as bus,
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
        writer(postgres_dsn) as c,
    ):
        await a.run("BEGIN")
        await c.run("BEGIN")
        for each in (a, a, c, b):
            await each.insert()
        await soon(lambda: seen.numbers == [4])
        await b.run(_LOOKS)
        await a.run("COMMIT")
        await soon(lambda: seen.begun == [4, 1])
        pausing = asyncio.ensure_future(bus.subscription(ID).pause())
        clock.jump()
        await b.run(_LOOKS)
        seen.released.set()
        await pausing
        await c.run("COMMIT")
        clock.jump()
        await b.run(_LOOKS)

        assert seen.numbers == [4, 1]

        await bus.subscription(ID).resume()
        await soon(lambda: seen.numbers == [4, 1, 2, 3])
        await check_nothing_is_late(bus, clock, b)


@pytest.mark.parametrize("ordering", ["stream", "global"])
async def test_an_idle_subscriber_gives_up_in_time(postgres_dsn: str, ordering: str) -> None:
    """Though nobody wakes it: it looks into its gaps by itself."""
    clock, seen = JumpingClock(), Seen()
    async with (
        giving_up(postgres_dsn, seen, clock, poll_interval=3600.0, ordering=ordering) as bus,
        writer(postgres_dsn) as a,
    ):
        await a.run("BEGIN")
        await a.insert()
        await bus.publish("test.done")
        if ordering == "stream":
            await soon(lambda: seen.numbers == [2])
        await a.run(_LOOKS)

        assert bus.subscription(ID).checkpoint in (0, None)

        clock.jump()
        await soon(lambda: bus.subscription(ID).checkpoint == 2)

        assert seen.numbers == [2]


async def test_what_is_missing_is_given_up_below_what_has_come(postgres_dsn: str) -> None:
    """Of several that are overdue one was filled in time: it is processed, and the others are given up."""
    clock, seen = JumpingClock(), Holding(hold=5)
    async with (
        giving_up(postgres_dsn, seen, clock) as bus,
        writer(postgres_dsn) as a,
        writer(postgres_dsn) as b,
        writer(postgres_dsn) as c,
    ):
        await a.run("BEGIN")
        await c.run("BEGIN")
        for each in (a, c, a, b):
            await each.insert()
        await soon(lambda: seen.numbers == [4])
        await b.run(_LOOKS)
        await b.insert()
        await soon(lambda: seen.begun == [4, 5])
        await c.run("COMMIT")
        clock.jump()
        await b.run(_LOOKS)
        seen.released.set()
        await soon(lambda: bus.subscription(ID).checkpoint == 5)
        given_up = await b.connection.fetch(
            "SELECT first_sequence, last_sequence FROM postbus.event_bus_gap_timeouts ORDER BY 1"
        )
        await a.run("ROLLBACK")

    assert seen.numbers == [4, 5, 2]
    assert [tuple(row) for row in given_up] == [(1, 1), (3, 3)]


def _delay_reads(bus: PgEventBus, seconds: float) -> None:
    """A store that takes its time, longer than it takes until somebody looks again."""
    real = bus.store.log.read

    async def read(*args: Any, **options: Any) -> object:
        await asyncio.sleep(seconds)
        return await real(*args, **options)

    if seconds:
        bus.store.log.read = read  # type: ignore[method-assign, assignment]
