"""A subscription's circuit breaker, with those who wait for it to let them in."""

import asyncio
import math

from postbus.policy.circuit import CircuitBreaker, CircuitState
from postbus.ports import Clock


class Gate:
    """Lets an attempt in, or makes it wait; never turns an event away while its subscription lasts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        self._breaker = CircuitBreaker()
        self._has_changed = asyncio.Event()
        self.is_retired = False
        self._is_stopping = False

    @property
    def state(self) -> str:
        """closed, open or half_open."""
        return self._breaker.state

    def retire(self) -> None:
        """The subscription is gone: those who wait for its handler need not wait any more."""
        self.is_retired = True
        self._has_changed.set()

    def stop_waiting(self) -> None:
        """The bus shuts down: those who wait are sent away."""
        self._is_stopping = True
        self._has_changed.set()

    def try_enter(self) -> bool:
        """Whether an attempt may begin now; if so it must end in leave() or abandon()."""
        return self._breaker.try_enter(self._monotonic())

    async def enter(self) -> bool:
        """Wait until an attempt may begin; False if the subscription has gone or the bus shuts down."""
        while not self.is_retired and not self._is_stopping:
            if self.try_enter():
                return True
            await self._wait(self._breaker.seconds_until_probe(self._monotonic()))
        return False

    def leave(self, succeeded: bool) -> bool:
        """The attempt that was let in has ended; whether this has opened the circuit breaker."""
        breaker = self._breaker
        before = breaker.state
        breaker.record(succeeded, self._monotonic())
        if succeeded and before is CircuitState.CLOSED:
            return False  # by far the most frequent case, in which nobody waits
        self._has_changed.set()
        return breaker.state is CircuitState.OPEN and before is not CircuitState.OPEN

    def abandon(self) -> None:
        """The attempt that was let in was cut off and says nothing about the handler."""
        self._breaker.abandon_probe()
        self._has_changed.set()

    async def _wait(self, seconds: float) -> None:
        """Until a probe may begin, or the probe under way has ended, or the subscription is gone."""
        self._has_changed.clear()
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(self._has_changed.wait())]
        if seconds != math.inf:
            waits.append(asyncio.ensure_future(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
