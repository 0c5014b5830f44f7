"""Measures how long an event loop keeps others waiting."""

import asyncio
import time
from types import TracebackType
from typing import Self

_INTERVAL = 0.001


class Ticker:
    """Wants to run every millisecond while its block runs, and notes by how much it was late."""

    def __init__(self) -> None:
        self._delays: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _tick(self) -> None:
        while True:
            due_at = time.perf_counter() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            self._delays.append(time.perf_counter() - due_at)

    def percentile(self, fraction: float) -> float:
        """So many of all ticks were late by no more than this, in seconds."""
        delays = sorted(self._delays)
        return delays[min(len(delays) - 1, int(len(delays) * fraction))]

    def report(self) -> str:
        percentiles = {
            fraction: f"{self.percentile(fraction) * 1000:.1f} ms" for fraction in (0.5, 0.9, 0.99, 1.0)
        }
        return f"{len(self._delays)} ticks, late by {percentiles}"
