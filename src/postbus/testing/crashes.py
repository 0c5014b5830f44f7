"""Crash points: a bus dies at each of them in turn, and a fresh one goes on where it left off."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from os import PathLike

from postbus.bus import EventBus
from postbus.clock import SystemClock
from postbus.errors import InvalidConfigError
from postbus.ports import Store
from postbus.stores.memory import InMemoryStore
from postbus.targets import store_for
from postbus.testing.doom import CRASH_POINTS, CrashPoint
from postbus.testing.lives import DoomedLife, MakeBus, Work, come_to_rest, limited

_CLOCK = SystemClock()


class Crash:
    """One way to die: at a crash point, when it is reached for the n-th time."""

    def __init__(self, point: CrashPoint, nth: int = 1) -> None:
        if point not in CRASH_POINTS:
            raise InvalidConfigError("crash point", point, f"one of {', '.join(CRASH_POINTS)}")
        if nth < 1:
            raise InvalidConfigError("nth", nth, "a whole number of 1 or more")
        self.point, self.nth = point, nth
        self.has_happened: bool | None = None
        """Whether the point was reached that often; None before survivor() was entered."""
        self._may_be_missed = False

    def __str__(self) -> str:
        return f"{self.point}-{self.nth}"

    @contextlib.asynccontextmanager
    async def survivor(
        self,
        make_bus: MakeBus,
        work: Work,
        *,
        target: "str | PathLike[str] | Store" = "memory:",
        timeout: float = 10.0,
    ) -> AsyncIterator[EventBus]:
        """A bus that has taken over from one that died here, and has come to rest.

        *make_bus* is called with the store of each life in turn, and subscribes. *work* publishes; a
        crash in the middle of it is followed by all of it once more, as by a caller who got no answer,
        so it has to give every event an event_id. The first bus dies where this crash says: everything
        that has begun since then is cancelled, nothing it does from then on changes anything, and its
        locks are free. *timeout* is how many real seconds each life may take.
        """
        try:
            # What is in memory outlives the bus only in the store itself; a file is opened anew.
            store = InMemoryStore() if target == "memory:" else target
            life = DoomedLife(store_for(store, _CLOCK), make_bus, work, self.point, self.nth)
            try:
                await life.run(timeout)
            finally:
                self.has_happened = life.has_died
            if not life.has_died and not self._may_be_missed:
                raise AssertionError(
                    "the point was not reached that often, so nothing was tested; let the bus use the store "
                    "that make_bus is given, and the work publish something that is handled"
                )
            async with make_bus(store_for(store, _CLOCK)) as bus:
                async with limited(timeout, bus):
                    if not life.is_work_done:
                        await work(bus)
                    await come_to_rest(bus)
                yield bus
        except BaseException as error:
            when = "after" if self.has_happened else "without"
            error.add_note(f"{when} a crash at {self.point!r}, reached for time number {self.nth}")
            raise


def every_crash(points: Sequence[CrashPoint] = CRASH_POINTS) -> Iterator[Crash]:
    """Crashes at each of the points, reached once, twice and so on, until it is not reached that often.

    >>> import asyncio
    >>> async def main() -> None:
    ...     for crash in every_crash(["after_handler"]):
    ...         sent: list[str] = []
    ...
    ...         def make_bus(store: Store, sent: list[str] = sent) -> EventBus:
    ...             bus = EventBus(store)
    ...
    ...             @bus.on("order.placed", id="mail")
    ...             async def mail(event):
    ...                 sent.append(event.id)
    ...
    ...             return bus
    ...
    ...         async def work(bus: EventBus) -> None:
    ...             await bus.publish("order.placed", event_id="order-1")
    ...
    ...         async with crash.survivor(make_bus, work):
    ...             print(crash, sent)
    >>> asyncio.run(main())
    after_handler-1 ['order-1', 'order-1']
    after_handler-2 ['order-1']
    """
    if isinstance(points, str):
        raise InvalidConfigError("points", points, "a list of crash points")
    for point in points:
        for nth in itertools.count(1):
            crash = Crash(point, nth)
            # How often a point is reached is found out here.
            crash._may_be_missed = True
            yield crash
            if crash.has_happened is None:
                raise AssertionError(f"nobody crashed at {crash}: enter crash.survivor(…) in the loop")
            if not crash.has_happened:
                break
        if nth == 1:
            raise AssertionError(
                f"the crash point {point!r} was never reached, so nothing was tested there; let the bus "
                "use the store that make_bus is given, or leave the point out: every_crash([…])"
            )
