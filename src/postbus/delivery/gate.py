"""A subscription's circuit breaker, with those who wait for it to let them in."""

import asyncio
import math

from postbus.policy.circuit import CircuitBreaker
from postbus.ports import Clock


class Gate:
    """Lets an attempt in, or makes it wait; never turns an event away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        self._breaker = CircuitBreaker()
        self._probe_ended = asyncio.Event()

    @property
    def state(self) -> str:
        """closed, open or half_open."""
        return self._breaker.state

    def try_enter(self) -> bool:
        """Whether an attempt may begin now; if so it must end in leave() or abandon()."""
        return self._breaker.try_enter(self._monotonic())

    async def enter(self) -> None:
        """Wait until an attempt may begin."""
        while not self.try_enter():
            seconds = self._breaker.seconds_until_probe(self._clock.monotonic())
            if seconds == math.inf:
                self._probe_ended.clear()
                await self._probe_ended.wait()
            else:
                await self._clock.sleep(seconds)

    def leave(self, succeeded: bool) -> None:
        """The attempt that was let in has ended."""
        self._breaker.record(succeeded, self._monotonic())
        self._probe_ended.set()

    def abandon(self) -> None:
        """The attempt that was let in was cut off and says nothing about the handler."""
        self._breaker.abandon_probe()
        self._probe_ended.set()
