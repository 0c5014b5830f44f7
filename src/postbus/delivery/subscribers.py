"""All durable subscribers of a bus."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator

from postbus.config import ReliableDeliveryConfig
from postbus.delivery.handle import SubscriptionHandle
from postbus.delivery.log_reader import LogReader
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.subscriber_loop import SubscriberLoop
from postbus.delivery.suspects import Suspects
from postbus.errors import DuplicateSubscriberError, SubscriptionNotFoundError
from postbus.events import GlobalSequence
from postbus.ports import Clock, Store


class Subscribers:
    """Starts and stops their loops, and wakes them when the log may have grown."""

    def __init__(
        self,
        store: Store,
        config: ReliableDeliveryConfig,
        clock: Clock,
        noise: Callable[[], float],
        start_bus: Callable[[], Awaitable[None]],
    ) -> None:
        self._start_bus = start_bus
        self._store, self._config, self._clock, self._noise = store, config, clock, noise
        self._reader = LogReader(store.log, clock, self.wake)
        self._suspects, self._transactions = Suspects(), asyncio.Lock()
        self._loops: dict[str, SubscriberLoop] = {}
        # Unsubscribed, and still at their last event.
        self._leaving: set[SubscriberLoop] = set()
        self._is_started = False
        self._poller: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[SubscriberLoop]:
        return iter(tuple(self._loops.values()))

    def add(self, subscriber: Subscriber) -> None:
        """Serve it from now on, or from start() on."""
        if subscriber.id in self._loops:
            raise DuplicateSubscriberError(subscriber.id)
        loop = SubscriberLoop(
            subscriber,
            self._store,
            self._reader,
            self._config,
            self._suspects,
            # Where transactions share one connection, the batches of several subscribers would add up.
            asyncio.Lock() if self._store.has_async_transactions else self._transactions,
            self._clock,
            self._noise,
        )
        loop.predecessors = [left for left in self._leaving if left.subscriber.id == subscriber.id]
        self._loops[subscriber.id] = loop
        self._reader.share(len(self._loops))
        if self._is_started:
            self._start(loop)

    def remove(self, subscriber_id: str) -> None:
        """Stop it after the event at hand. Idempotent."""
        loop = self._loops.pop(subscriber_id, None)
        if loop is not None:
            loop.stop()
            self._reader.share(len(self._loops))
            self._leaving = {left for left in self._leaving if left.state != "stopped"} | {loop}

    def handle(self, subscriber_id: str) -> SubscriptionHandle:
        """Its handle. SubscriptionNotFoundError."""
        loop = self._loops.get(subscriber_id)
        if loop is None:
            raise SubscriptionNotFoundError(subscriber_id)
        return SubscriptionHandle(loop, self._store.log, self._clock, self._start_bus)

    async def start(self) -> None:
        """Begin with all of them; those that start from now on get what is published after this."""
        head = None
        if any(loop.subscriber.start_from == "now" for loop in self):
            head = await self._store.log.head()
        self._is_started = True
        for loop in self:
            self._start(loop, head)

    def wake(self) -> None:
        """The log may have grown."""
        for loop in self._loops.values():
            loop.wake()

    def begin_stopping(self) -> None:
        """Let each end after the event at hand."""
        for loop in self._all():
            loop.stop()

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None") -> None:
        """Return when all have ended, but for the one whose handler is *by*."""
        for loop in self._all():
            if not loop.is_run_by(by):
                await loop.wait_until_stopped()

    async def cut_off(self) -> None:
        """End those that have not ended yet, and watch the log no more."""
        if self._is_started:
            self._store.log.unwatch(self.wake)
            self._store.subscriber_locks.watch(None, None)
        self._reader.stop()
        if self._poller is not None:
            self._poller.cancel()
        by = asyncio.current_task()
        await asyncio.gather(*[loop.cut_off(by) for loop in self._all()])

    async def wait_until_idle(self) -> bool:
        """Return when every active one is at the end of the log; whether any had to be waited for."""
        for loop in self:
            loop.check_waits_not_for_itself()
        head = await self._store.log.head()
        has_waited = False
        for loop in self:
            while loop.is_active and not loop.is_idle_at(head):
                has_waited = True
                await loop.wait_for_change()
        return has_waited

    def _start(self, loop: SubscriberLoop, head: GlobalSequence | None = None) -> None:
        if self._poller is None:
            self._store.log.watch(self.wake)
            self._store.subscriber_locks.watch(self._lose, self._try_again)
            self._poller = asyncio.get_running_loop().create_task(
                self._poll(), name="postbus poll", context=contextvars.Context()
            )
        loop.start(head)

    def _lose(self) -> None:
        """Another instance may be active, and another server answer: nothing that is known counts."""
        self._reader.forget()
        for loop in self:
            loop.lose()

    def _try_again(self) -> None:
        for loop in self:
            loop.try_again()

    async def _poll(self) -> None:
        """A wake-up may get lost, and a clock of the tests may stand still: look now and then."""
        while True:
            await self._clock.until(self._clock.monotonic() + self._config.poll_interval)
            self._reader.drop_old()
            self.wake()
            for loop in self:
                await loop.look_at_gaps()

    def _all(self) -> set[SubscriberLoop]:
        return {*self._loops.values(), *self._leaving}
