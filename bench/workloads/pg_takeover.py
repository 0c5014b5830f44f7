"""How soon a standby on PostgreSQL goes on when the active instance leaves in good order."""

import asyncio
import time

from postbus import Event
from postbus.ops.bench.measuring import EVENT_TYPE, percentile
from postbus.ops.bench.model import Column, Effort, Sample, Workload
from postbus.ops.bench.postgres.buses import BATCHED
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.sessions import durability
from postbus.pg import PgEventBus

_TAKEOVERS = 5
_PATIENCE = 20.0


def run_takeovers(dsn: str, _effort: Effort) -> Sample:
    """Two buses that meet only in the database; the one that shuts down comes back as the standby."""

    async def run() -> Sample:
        active = Instance(dsn)
        durations: list[float] = []
        await active.start("live")
        for _ in range(_TAKEOVERS):
            standby = Instance(dsn)
            await standby.start("standby")
            durations.append(await _take_over(active, standby))
            active = standby
        await active.bus.shutdown()
        figures = {"p50": percentile(durations, 50), "highest": max(durations)}
        return Sample(figures=figures, settings=await durability(dsn))

    return asyncio.run(run())


class Instance:
    """A bus with the subscriber that all instances have."""

    def __init__(self, dsn: str) -> None:
        self.bus = PgEventBus(dsn)
        self.entered_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.bus.subscribe(EVENT_TYPE, self._enter, id="bench", start_from="now", checkpoint_mode=BATCHED)

    async def start(self, state: str) -> None:
        """Return when its subscriber is in a state."""
        await self.bus.start()
        async with asyncio.timeout(_PATIENCE):
            while self.bus.subscription("bench").state != state:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _enter(self, _event: Event) -> None:
        if not self.entered_at.done():
            self.entered_at.set_result(time.perf_counter())


async def _take_over(active: Instance, standby: Instance) -> float:
    """Milliseconds from the moment that the active one is told to leave to the handler in the other."""

    async def publish_all_the_time() -> None:
        while not standby.entered_at.done():
            await standby.bus.publish(EVENT_TYPE)

    publishing = asyncio.create_task(publish_all_the_time())
    began = time.perf_counter()
    await active.bus.shutdown()
    async with asyncio.timeout(_PATIENCE):
        await publishing
    return (standby.entered_at.result() - began) * 1000


WORKLOAD = Workload(
    name="pg-takeover",
    title="PostgreSQL: shutdown of the active instance is called → the handler of the standby is entered",
    candidates=(
        on_postgres("clean-exit", f"postbus: {_TAKEOVERS} takeovers after a clean exit", run_takeovers),
    ),
    columns=(Column("p50", "p50", "ms"), Column("highest", "highest", "ms")),
    needs_postgres=True,
)
