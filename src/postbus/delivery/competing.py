"""A subscriber whose workers compete: one instance feeds the outbox, all of them work."""

import asyncio
import contextlib

from postbus.delivery.outbox.progress import PoolProgress
from postbus.delivery.outbox.worker import Worker, Workplace
from postbus.delivery.receivers import TransactionalReceiver
from postbus.delivery.service import Service
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.subscriber_loop import SubscriberLoop
from postbus.errors import StoreError, WaitsForItselfError
from postbus.events import Gap, GlobalSequence
from postbus.ports import Store


class CompetingService:
    """Serves it in this instance: a feeder, which may stand by, and a worker. Fulfils Service."""

    def __init__(self, feeder: SubscriberLoop, store: Store, workplace: Workplace) -> None:
        self.subscriber: Subscriber = feeder.subscriber
        self._feeder, self._store, self._workplace = feeder, store, workplace
        self._worker = self._make_worker()
        self._progress = self._make_progress()
        self._is_paused = False
        self._is_begun = self._is_stopping = False
        self._has_changed = asyncio.Event()
        feeder.on_change = self._note_change

    @property
    def state(self) -> str:
        """starting, catching_up, live, standby, paused, stopped or failed.

        The workers of all instances are active: they stand by only for those that run it in parts.
        """
        is_worker_gone = self._worker.is_stopped or (self._is_stopping and not self._is_begun)
        if is_worker_gone and self._feeder.state == "stopped":
            return "stopped"
        if self.reason is not None:
            return "failed"
        if self._feeder.stands_by_for_layout:
            return "standby"
        if self._is_paused:
            return "paused"
        if not self._worker.is_ready or self._feeder.state == "starting":
            return "starting"
        is_behind = self._worker.is_behind or self._feeder.state == "catching_up"
        return "catching_up" if is_behind else "live"

    @property
    def reason(self) -> str | None:
        """Why nothing goes on at the moment, if so."""
        return self._worker.patience.reason or self._feeder.reason

    @property
    def checkpoint(self) -> GlobalSequence | None:
        """Up to where everything is processed by the pool, as far as this instance knows."""
        return self._progress.checkpoint

    @property
    def position(self) -> GlobalSequence:
        """The same; 0 before it is known."""
        return self._progress.checkpoint or GlobalSequence(0)

    def has_written(self, sequence: GlobalSequence) -> bool:
        """Whether the pool has processed everything up to there, as far as this instance knows."""
        return self._progress.has_processed(sequence)

    def missing(self, *, here: bool = False) -> tuple[Gap, ...]:  # noqa: ARG002
        """Numbers that were not there when the log was read, in whichever instance, and may be by now."""
        return self._progress.missing

    def want_written(self, target: GlobalSequence) -> None:
        """Somebody waits for *target*: write what was processed, and ask how far the others are."""
        self._feeder.want_written(target)
        self._worker.want_written()
        self._progress.want()

    @property
    def is_active(self) -> bool:
        """Whether this instance works."""
        return self.state in ("starting", "catching_up", "live")

    def is_idle_at(self, head: GlobalSequence) -> bool:
        """Whether the pool has processed everything up to there; if not, that is found out soon."""
        is_fed = self._feeder.is_idle_at(head) or self._feeder.state == "standby"
        if is_fed and self._worker.is_at_rest and self._progress.is_idle_at(head):
            return True
        self.want_written(head)
        return False

    @property
    def is_at_rest(self) -> bool:
        """Whether a pause is complete: no handler runs here and none will."""
        return not self._is_paused or not self._is_begun or self._worker.is_at_rest

    @property
    def is_begun(self) -> bool:
        """Whether the bus was started."""
        return self._is_begun

    def start(self, head: GlobalSequence | None = None) -> None:
        """Begin; *head* is where the log is at this moment, if that is known."""
        if self.subscriber is not self._feeder.subscriber:
            self._feeder.subscriber = self.subscriber
            self._worker, self._progress = self._make_worker(), self._make_progress()
        self._is_begun = True
        self._feeder.start(head)
        if self._is_paused:
            self._worker.pause()
        self._worker.start()
        self._progress.want()

    def follow(self, predecessors: list[Service]) -> None:
        """Those of the same id that were unsubscribed have to end first."""
        self._feeder.follow(predecessors)

    def wake(self) -> None:
        """Look again: the log may have grown, or a row become due."""
        self._feeder.wake()

    def try_again(self) -> None:
        """Somebody has let go of something: a feeder that stands by need not wait."""
        self._feeder.try_again()

    def lose(self) -> None:
        """All locks are lost: deliver nothing after the events at hand."""
        self._feeder.lose()
        self._worker.lose()

    def pause(self) -> None:
        """Deliver nothing in this instance after the events at hand; others get what comes."""
        self._is_paused = True
        self._worker.pause()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._worker.resume()
        self._note_change()

    def stop(self) -> None:
        """End after the events at hand, what was processed written and what was not begun given back."""
        self._is_stopping = True
        self._feeder.stop()
        self._worker.stop()
        self._progress.stop()
        self._note_change()

    async def look_at_gaps(self) -> None:
        """Tell of gaps that are open for long; and see how far the pool is, and whether rows are due."""
        await self._feeder.look_at_gaps()
        self._worker.wake()
        # Others have to know as well that what nobody wants was passed over.
        self._feeder.want_written(self._feeder.position)
        with contextlib.suppress(StoreError):
            await self._progress.look()

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is the subscriber's own handler that asks, and would wait for itself."""
        return self._worker.is_run_by(task)

    def check_waits_not_for_itself(self) -> None:
        """Refuse a wait that could never end."""
        if self.is_run_by(asyncio.current_task()):
            raise WaitsForItselfError(self.subscriber.id)

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None" = None) -> None:
        """Return when it has ended; neither a handler that was given up nor *by* is waited for."""
        while self.state != "stopped" and not self.is_run_by(by):
            await self.wait_for_change()

    async def cut_off(self, by: "asyncio.Task[object] | None") -> None:
        """End it in the middle of its events, which others get."""
        self.stop()
        await asyncio.gather(self._feeder.cut_off(by), self._worker.cut_off(by))

    async def wait_for_change(self) -> None:
        """Return when the state or the position may have changed."""
        self._has_changed.clear()
        await self._has_changed.wait()

    def _make_worker(self) -> Worker:
        concurrency = self.subscriber.concurrency
        if isinstance(self.subscriber.receiver, TransactionalReceiver):
            # Rows that wait here for a connection would be missing where there is one.
            concurrency = min(concurrency, self._workplace.outbox.most_transactions)
        return Worker(self.subscriber, self._workplace, self._note_work, concurrency=concurrency)

    def _make_progress(self) -> PoolProgress:
        assert self._store.layouts is not None, "where there is an outbox, subscribers can be split"
        return PoolProgress(
            self.subscriber.id,
            self._store.layouts,
            self._workplace.outbox,
            self._worker.patience,
            self._workplace.clock,
            self._note_change,
        )

    def _note_work(self) -> None:
        self._progress.nudge()
        self._note_change()

    def _note_change(self) -> None:
        self._has_changed.set()
