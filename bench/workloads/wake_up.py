"""How soon a durable subscriber notices what another process publishes, and what idling costs."""

import asyncio
import time
from pathlib import Path

from postbus import Event, EventBus
from postbus.ops.bench.measuring import EVENT_TYPE
from postbus.ops.bench.model import Candidate, Column, Effort, Sample, Workload
from postbus.ops.bench.sqlite.publishers import settings_in_force, store_in
from postbus.ops.bench.sqlite.wake_up import COLUMNS, TITLE, TWO_PROCESSES

_IDLE_SUBSCRIBER_COUNT = 3


def run_idle(folder: Path, effort: Effort) -> Sample:
    """Nothing happens: what does it cost?"""

    async def run() -> Sample:
        store = store_in(folder)
        bus = EventBus(store)
        for number in range(_IDLE_SUBSCRIBER_COUNT):
            bus.subscribe(EVENT_TYPE, _ignore, id=f"idle-{number}")
        async with bus:
            await bus.idle()
            await asyncio.sleep(effort.warm_up)
            began, cpu_began = time.perf_counter(), time.process_time()
            await asyncio.sleep(effort.seconds)
            share = (time.process_time() - cpu_began) / (time.perf_counter() - began)
            return Sample(figures={"idle": share * 100}, settings=await settings_in_force(store))

    return asyncio.run(run())


async def _ignore(event: Event) -> None:
    """Never called."""


WORKLOAD = Workload(
    name="wake-up",
    title=f"{TITLE}, synchronous=FULL",
    candidates=(
        TWO_PROCESSES,
        Candidate(
            name="idle",
            label=f"postbus: {_IDLE_SUBSCRIBER_COUNT} durable subscribers and nothing to do",
            run=run_idle,
        ),
    ),
    columns=(*COLUMNS, Column("idle", "CPU", "%")),
)
