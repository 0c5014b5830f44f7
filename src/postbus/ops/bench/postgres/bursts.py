"""Steps that are repeated side by side, and what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from postbus.ops.bench.measuring import percentile
from postbus.ops.bench.model import Effort, Sample
from postbus.ops.bench.postgres.sessions import ask, durability

# Does something once and says for how many events.
Step = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Burst:
    """What the steps got done after warming up; each latency is one step, in seconds."""

    count: int
    total_count: int
    seconds: float
    cpu_seconds: float
    latencies: list[float]

    def figures(self) -> dict[str, float]:
        """Events a second, CPU time of this process for each in µs, the time of a step in ms."""
        return {
            "rate": self.count / self.seconds,
            "cost": self.seconds / self.count * 1e6,
            "cpu": self.cpu_seconds / self.count * 1e6,
            "p50": percentile(self.latencies, 50) * 1000,
            "p99": percentile(self.latencies, 99) * 1000,
        }

    async def sample(self, dsn: str, count_stored: str) -> Sample:
        """The figures, unless the database shows that the work was not done."""
        stored = await ask(dsn, count_stored)
        if stored != self.total_count:
            raise AssertionError(f"{self.total_count} events were counted, {stored} are stored")
        return Sample(figures=self.figures(), settings=await durability(dsn))


async def repeat_together(steps: Sequence[Step], effort: Effort) -> Burst:
    """Each step is repeated in a task of its own: first to warm up, then to be measured."""
    warm_up_count, _ = await _repeat_for(steps, effort.warm_up)
    began, cpu_began = time.perf_counter(), time.process_time()
    count, latencies = await _repeat_for(steps, effort.seconds)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return Burst(count, warm_up_count + count, seconds, cpu_seconds, latencies)


async def _repeat_for(steps: Sequence[Step], seconds: float) -> tuple[int, list[float]]:
    latencies: list[float] = []
    deadline = time.perf_counter() + seconds

    async def repeat(step: Step) -> int:
        count, before = 0, time.perf_counter()
        while True:
            count += await step()
            after = time.perf_counter()
            latencies.append(after - before)
            if after >= deadline:
                return count
            before = after

    return sum(await asyncio.gather(*map(repeat, steps))), latencies
