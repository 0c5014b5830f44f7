"""All durable subscribers of a bus."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator

from postbus.config import ReliableDeliveryConfig
from postbus.delivery.competing import CompetingService
from postbus.delivery.filled_gaps import find_filled, is_missing
from postbus.delivery.handle import SubscriptionHandle
from postbus.delivery.log_reader import LogReader
from postbus.delivery.outbox.drain import OutboxDrain
from postbus.delivery.outbox.worker import Workplace
from postbus.delivery.partitioned import PartitionedService
from postbus.delivery.parts.loops import PartTerms
from postbus.delivery.service import Service
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.subscriber_loop import SubscriberLoop
from postbus.delivery.suspects import Suspects
from postbus.errors import DuplicateSubscriberError, SubscriptionNotFoundError
from postbus.events import GlobalSequence
from postbus.ports import Clock, Store


class Subscribers:
    """Starts and stops what serves them, and wakes them when the log may have grown."""

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
        self._workplace: Workplace | None = None
        if store.outbox is not None:
            self._workplace = Workplace(
                outbox=store.outbox,
                suspects=self._suspects,
                clock=clock,
                noise=noise,
                lease=config.failover_timeout,
            )
        self._services: dict[str, Service] = {}
        # Unsubscribed, and still at their last event.
        self._leaving: set[Service] = set()
        self._is_started = False
        self._poller: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Service]:
        return iter(tuple(self._services.values()))

    def add(self, subscriber: Subscriber) -> None:
        """Serve it from now on, or from start() on."""
        if subscriber.id in self._services:
            raise DuplicateSubscriberError(subscriber.id)
        service = self._make_service(subscriber)
        service.follow([left for left in self._leaving if left.subscriber.id == subscriber.id])
        self._services[subscriber.id] = service
        self._share_reads()
        if self._is_started:
            self._start(service)

    def remove(self, subscriber_id: str) -> None:
        """Stop it after the event at hand. Idempotent."""
        service = self._services.pop(subscriber_id, None)
        if service is not None:
            service.stop()
            self._share_reads()
            self._leaving = {left for left in self._leaving if left.state != "stopped"} | {service}

    def handle(self, subscriber_id: str) -> SubscriptionHandle:
        """Its handle. SubscriptionNotFoundError."""
        service = self._services.get(subscriber_id) if isinstance(subscriber_id, str) else None
        if service is None:
            raise SubscriptionNotFoundError(subscriber_id)
        return SubscriptionHandle(service, self._store.log, self._clock, self._start_bus)

    async def start(self) -> None:
        """Begin with all of them; those that start from now on get what is published after this."""
        head = None
        if any(service.subscriber.start_from == "now" for service in self):
            head = await self._store.log.head()
        self._is_started = True
        for service in self:
            self._start(service, head)

    def wake(self) -> None:
        """The log may have grown."""
        for service in self._services.values():
            service.wake()

    def begin_stopping(self) -> None:
        """Let each end after the event at hand."""
        for service in self._all():
            service.stop()

    def are_run_by(self, task: "asyncio.Task[object]") -> bool:
        """Whether it is the handler of one of them that asks."""
        return any(service.is_run_by(task) for service in self._all())

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None") -> None:
        """Return when all have ended, but for the one whose handler is *by*."""
        for service in self._all():
            await service.wait_until_stopped(by)

    async def cut_off(self) -> None:
        """End those that have not ended yet, and watch the log no more."""
        if self._is_started:
            self._store.log.unwatch(self.wake)
            self._store.subscriber_locks.watch(None, None, self._config.failover_timeout)
        self._reader.stop()
        if self._poller is not None:
            self._poller.cancel()
        by = asyncio.current_task()
        await asyncio.gather(*[service.cut_off(by) for service in self._all()])

    async def wait_until_idle(self) -> bool:
        """Return when every active one is at the end of the log; whether any had to be waited for."""
        for service in self:
            service.check_waits_not_for_itself()
        head = await self._store.log.head()
        has_waited = False
        for service in self:
            while service.is_active and not await self._is_idle_at(head, service):
                has_waited = True
        return has_waited

    async def _is_idle_at(self, head: GlobalSequence, service: Service) -> bool:
        """Whether it is; if not, something has changed since."""
        if not service.is_idle_at(head):
            await service.wait_for_change()
            return False
        filled = await find_filled(self._store.log, service, head, here=True)
        for number in filled:
            service.want_written(number)
        if any(is_missing(service, number, here=True) for number in filled):
            service.wake()
            await service.wait_for_change()
        return not filled

    def _start(self, service: Service, head: GlobalSequence | None = None) -> None:
        if self._poller is None:
            self._store.log.watch(self.wake)
            self._store.subscriber_locks.watch(self._lose, self._try_again, self._config.failover_timeout)
            self._poller = asyncio.get_running_loop().create_task(
                self._poll(), name="postbus poll", context=contextvars.Context()
            )
        service.start(head)

    def _make_service(self, subscriber: Subscriber) -> Service:
        if subscriber.partitions > 1:
            return PartitionedService(
                subscriber, self._store, self._config, self._clock, self._noise, self._make_loop
            )
        if subscriber.mode == "competing":
            workplace = self._workplace
            assert workplace is not None, "checked when it was registered"
            return CompetingService(self._make_loop(subscriber), self._store, workplace)
        return self._make_loop(subscriber)

    def _make_loop(self, subscriber: Subscriber, part: PartTerms | None = None) -> SubscriberLoop:
        return SubscriberLoop(
            subscriber,
            self._store,
            self._reader,
            self._config,
            self._suspects,
            # Where transactions share one connection, the batches of several subscribers would add up.
            asyncio.Lock() if self._store.has_async_transactions else self._transactions,
            self._clock,
            self._noise,
            make_part_loop=self._make_loop if part is None else None,
            part=part,
            drain=self._make_drain(subscriber),
        )

    def _make_drain(self, subscriber: Subscriber) -> OutboxDrain | None:
        """For one that is whole: only then there may be an outbox of its workers."""
        is_whole = subscriber.part is None or subscriber.part.count == 1
        if self._workplace is None or subscriber.mode == "competing" or not is_whole:
            return None
        return OutboxDrain(self._workplace, self._store.checkpoints)

    def _share_reads(self) -> None:
        self._reader.share(sum(service.subscriber.partitions for service in self))

    def _lose(self) -> None:
        """Another instance may be active, and another server answer: nothing that is known counts."""
        self._reader.forget()
        for service in self:
            service.lose()

    def _try_again(self) -> None:
        for service in self:
            service.try_again()

    async def _poll(self) -> None:
        """A wake-up may get lost, and a clock of the tests may stand still: look now and then."""
        while True:
            await self._clock.until(self._clock.monotonic() + self._config.poll_interval)
            self._reader.drop_old()
            self.wake()
            for service in self:
                await service.look_at_gaps()

    def _all(self) -> set[Service]:
        return {*self._services.values(), *self._leaving}
