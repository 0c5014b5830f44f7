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
        # A new one with every opening: only a probe has the ticket of a breaker that is not closed.
        self._ticket = 1
        self.free_ticket = 1
        """The ticket while everybody is let in; 0 while somebody may have to wait."""
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

    def try_enter(self, now: float) -> int:
        """A ticket, if an attempt may begin now, with which it must leave() or abandon(); else 0."""
        return self.free_ticket or (self._ticket if self._breaker.try_enter(now) else 0)

    async def enter(self) -> int:
        """Wait until an attempt may begin; 0 if the subscription has gone or the bus shuts down."""
        while not self.is_retired and not self._is_stopping:
            now = self._monotonic()
            if ticket := self.try_enter(now):
                return ticket
            await self._wait(self._breaker.seconds_until_probe(now))
        return 0

    def leave(self, ticket: int, succeeded: bool) -> bool:
        """The attempt that was let in has ended; whether this has opened the circuit breaker."""
        if ticket != self._ticket:
            return False  # it began before the breaker opened, and is no probe
        if not self._breaker.record(succeeded, self._monotonic()):
            return False
        self._has_changed.set()
        has_opened = self._breaker.state is CircuitState.OPEN
        if has_opened:
            self._ticket += 1
        self.free_ticket = 0 if has_opened else self._ticket
        return has_opened

    def abandon(self, ticket: int) -> None:
        """The attempt that was let in was cut off and says nothing about the handler."""
        if ticket == self._ticket:
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
