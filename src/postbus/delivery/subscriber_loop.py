"""One durable subscriber: become its owner, deliver, write its checkpoint; until stopped."""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from postbus.closing import is_within
from postbus.config import InstanceMode, ReliableDeliveryConfig
from postbus.delivery.deliveries import LeftBehindError
from postbus.delivery.error_stories import describe_error
from postbus.delivery.failures import FailureMemory
from postbus.delivery.halt import Halt
from postbus.delivery.log_reader import LogReader
from postbus.delivery.outbox.drain import OutboxDrain
from postbus.delivery.ownership import Ownership, Surroundings
from postbus.delivery.parts.layout_change import LayoutChange, group_of
from postbus.delivery.parts.loops import MakePartLoop, PartLoops, PartTerms
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.service import Service
from postbus.delivery.subscriber import Subscriber, find_start
from postbus.delivery.suspects import Suspects
from postbus.errors import (
    LayoutChangedError,
    StoreClosedError,
    SubscriberFencedError,
    WaitsForItselfError,
)
from postbus.events import Checkpoint, Gap, GlobalSequence, LogPosition
from postbus.ports import Clock, Store

logger = logging.getLogger("postbus")

# How often a standby asks whether the subscriber has become free, and after how many times it looks how
# far the other one has come.
_STANDBY_SECONDS = 0.2
_TIMES_BETWEEN_LOOKS = 5
_SECONDS_AFTER_ERROR = 1.0


class _LocksLostError(Exception):
    """Others may run the subscriber by now."""


class SubscriberLoop:
    """Serves one subscriber. Whatever goes wrong, it says so and goes on."""

    def __init__(
        self,
        subscriber: Subscriber,
        store: Store,
        reader: LogReader,
        config: ReliableDeliveryConfig,
        suspects: Suspects,
        transactions: asyncio.Lock,
        clock: Clock,
        noise: Callable[[], float],
        *,
        make_part_loop: MakePartLoop | None = None,
        part: PartTerms | None = None,
        drain: OutboxDrain | None = None,
    ) -> None:
        self.subscriber, self._store = subscriber, store
        self._part = part
        # What has to be done before anything is read: None for the feeder of an outbox.
        self._drain = drain
        self._is_drained = drain is None
        # The lock of a part is held by whoever made its loop.
        self._is_coordinated = config.instance_mode is InstanceMode.COORDINATED and part is None
        self._members = store.members if self._is_coordinated else None
        self.patience = Patience(subscriber.id, clock, noise, self._note_progress)
        self._halt = Halt()
        self._around = Surroundings(
            store=store,
            reader=reader,
            config=config,
            clock=clock,
            noise=noise,
            patience=self.patience,
            memory=FailureMemory(),
            suspects=suspects,
            transactions=transactions,
            halt=self._halt,
            has_changed=self._has_changed,
            wake=self.wake,
            on_page=self._note_progress,
            on_reached=self._note_progress,
            on_stubborn=self._go_on_without_handler,
            up_to=None if part is None else part.up_to,
        )
        self._wake_up = asyncio.Event()
        self._may_be_free = asyncio.Event()
        self._phase = "starting"
        self._is_paused = False
        self._has_lock = False
        # The locks were lost while this instance was the owner.
        self._is_lost = False
        # Where the checkpoint was when this instance last saw it, as long as it is not the owner.
        self._known: GlobalSequence | None = None
        self._ownership: Ownership | None = None
        self._task: asyncio.Task[None] | None = None
        # Their handlers would not end.
        self._left_tasks: set[asyncio.Task[None]] = set()
        # Those of the same id that were unsubscribed and are still at their last event.
        self._predecessors: list[Service] = []
        self._has_progressed = asyncio.Event()
        self.on_change: Callable[[], None] | None = None
        """Called as well when the state or the position may have changed."""
        self._head_at_start: GlobalSequence | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._ends_program = False
        self._is_looking = False
        # Those of the parts that it was split into, and which are run to an end.
        self._old_parts = PartLoops()
        self._layout: LayoutChange | None = None
        if store.layouts is not None and make_part_loop is not None:
            self._layout = LayoutChange(
                store,
                self.patience,
                self._old_parts,
                make_part_loop,
                self._note_layout,
                self._may_be_free,
                is_coordinated=self._is_coordinated,
            )

    @property
    def state(self) -> str:
        """starting, catching_up, live, standby, paused, stopped or failed."""
        if self._phase != "stopped" and self.patience.reason is not None:
            return "failed"
        if len(self._old_parts):
            # They come to an end, not to the end of the log.
            return "catching_up" if self._old_parts.state == "live" else self._old_parts.state
        return self._phase

    @property
    def reason(self) -> str | None:
        """Why nothing goes on at the moment, if so."""
        return self.patience.reason

    @property
    def checkpoint(self) -> GlobalSequence | None:
        """What is written, as far as this instance knows; None before it has asked the store."""
        if self._ownership is not None:
            return self._ownership.writer.written
        return self._known

    @property
    def position(self) -> GlobalSequence:
        """Everything up to here was processed, is a dead letter or not wanted."""
        if self._ownership is not None:
            return self._ownership.writer.position
        return GlobalSequence(0) if self._known is None else self._known

    @property
    def _head(self) -> GlobalSequence:
        return self.position if self._ownership is None else self._ownership.writer.head

    @property
    def stands_by_for_layout(self) -> bool:
        """Whether others run the subscriber in another number of parts, and none of them is run here."""
        return self._layout is not None and self._layout.is_waiting and not len(self._old_parts)

    def has_written(self, sequence: GlobalSequence) -> bool:
        """Whether this number was processed and that is written, as far as this instance knows."""
        if self._ownership is not None:
            # Beyond what is left in the outbox the feeder's checkpoint tells nothing.
            return self._is_drained and self._ownership.writer.is_written(sequence)
        return self._known is not None and sequence <= self._known

    def missing(self, *, here: bool = False) -> tuple[Gap, ...]:  # noqa: ARG002
        """Numbers that were not there when this instance read the log, and may be by now."""
        return () if self._ownership is None else self._ownership.writer.missing

    @property
    def is_active(self) -> bool:
        """Whether this instance is the one that delivers, and does so now."""
        return self.state in ("starting", "catching_up", "live")

    def is_idle_at(self, head: GlobalSequence) -> bool:
        """Whether everything up to there was processed, and whatever is due was written."""
        return self._head >= head and not self._is_looking

    @property
    def is_at_rest(self) -> bool:
        """Whether a pause is complete: no handler runs and none will, or nobody wants a pause any more."""
        if not self._is_paused or self._task is None or self._phase in ("paused", "standby", "stopped"):
            return self._old_parts.is_at_rest
        is_handling = self._ownership is not None and self._ownership.is_handling
        return self.patience.reason is not None and not is_handling

    @property
    def is_begun(self) -> bool:
        """Whether the bus was started."""
        return self._task is not None

    def start(self, head: GlobalSequence | None = None) -> None:
        """Begin, in a task of its own; *head* is where the log is at this moment, if that is known."""
        if self._head_at_start is None:
            # What is published from here on is not to be missed by one that starts from now on.
            self._head_at_start = self._store.log.known_head if head is None else head
        # Without the context of whoever happens to start it: handlers run in it.
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"postbus subscriber {self.subscriber.id}", context=contextvars.Context()
        )

    def follow(self, predecessors: list[Service]) -> None:
        """Those of the same id that were unsubscribed have to end first."""
        self._predecessors = predecessors

    def wake(self) -> None:
        """Look again: the log may have grown, or somebody wants something."""
        self._wake_up.set()
        self._old_parts.wake()

    def pause(self) -> None:
        """Deliver nothing after the event at hand."""
        self._is_paused = True
        self._look_at_halt()
        self._old_parts.pause()
        self.wake()

    def lose(self) -> None:
        """Another instance may have the subscriber by now: deliver nothing after the event at hand."""
        if self._layout is not None:
            self._layout.lose()
        if self._has_lock or self._ownership is not None or self._part is not None:
            self._is_lost = True
            self._look_at_halt()
            self.wake()

    async def look_at_gaps(self) -> None:
        """Tell of gaps that are open for long."""
        if self._ownership is not None:
            await self._ownership.look_at_gaps()

    def try_again(self) -> None:
        """The subscriber may have become free: a standby need not wait."""
        self._may_be_free.set()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._look_at_halt()
        self._old_parts.resume()
        if self._phase == "paused":
            self._set_phase("catching_up")
        self.wake()
        self._note_progress()

    def stop(self) -> None:
        """End after the event at hand, its checkpoint written."""
        self.patience.stop()
        self._look_at_halt()
        self._leave()
        self._old_parts.stop()
        self.wake()
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        # A task that is only about to end says so itself.
        if self._task is None or self._task.done():
            self._set_phase("stopped")

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is the subscriber's own handler that asks, and would wait for itself."""
        if task is None:
            return False
        if self._drain is not None and self._drain.is_run_by(task):
            return True
        return task is self._task or task in self._left_tasks or self._old_parts.is_run_by(task)

    def check_waits_not_for_itself(self) -> None:
        """Refuse a wait that could never end."""
        if self.is_run_by(asyncio.current_task()):
            raise WaitsForItselfError(self.subscriber.id)

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None" = None) -> None:
        """Return when it has ended; neither a handler that was given up nor *by* is waited for."""
        while self._phase != "stopped" and not self.is_run_by(by):
            await self.wait_for_change()

    async def cut_off(self, by: "asyncio.Task[object] | None") -> None:
        """End it in the middle of an event, which is delivered again by the next start."""
        self.stop()
        await self._old_parts.cut_off(by)
        tasks = [task for task in (self._task, *self._left_tasks) if task is not None and not task.done()]
        # A handler may be the one who shuts the bus down.
        tasks = [task for task in tasks if task is not by]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def want_written(self, target: GlobalSequence) -> None:
        """Somebody waits for the checkpoint to reach *target*: write it as soon as it is processed."""
        if self._ownership is not None:
            self._ownership.writer.want(target)

    async def wait_for_change(self) -> None:
        """Return when the state or the position may have changed."""
        self._has_progressed.clear()
        await self._has_progressed.wait()

    async def _run(self) -> None:
        try:
            await self._serve()
            while self._part is None:
                await self._serve()
        except LeftBehindError:
            logger.warning("a handler of %s ended that was given up before", self.subscriber.id)
            self._left_tasks.discard(asyncio.current_task())
            return
        except StoppedError:
            pass
        except (SystemExit, KeyboardInterrupt):
            self._ends_program = True
            raise
        except asyncio.CancelledError:
            if not self.patience.is_stopping:
                self._start_again_later("the task of the subscriber was cancelled from outside")
            raise
        except GeneratorExit as error:
            if not is_within(self._task):
                raise
            if self._ownership is not None:
                self._ownership.note_broken_off(describe_error(error))
            if not self.patience.is_stopping:
                self._start_again_later("what its handler waited for has closed the task of the subscriber")
        except StoreClosedError as error:
            if not self.patience.is_stopping:
                logger.error("subscriber %s stops: %s", self.subscriber.id, error)
            self.patience.reason = str(error)
        finally:
            if is_within(self._task):
                await self._end()

    def _start_again_later(self, reason: str) -> None:
        """Nobody has told the task to stop: a library has ended it, or a stray cancel()."""
        error = asyncio.CancelledError(reason)
        logger.warning("subscriber %s: %s; it starts again", self.subscriber.id, error)
        self.patience.fail(error)
        # Later, and not at all where the event loop is about to end.
        self._restart = asyncio.get_running_loop().call_later(_SECONDS_AFTER_ERROR, self._start_again)

    def _start_again(self) -> None:
        self._restart = None
        self.patience.recover()
        if not self.patience.is_stopping:
            self.start()

    async def _serve(self) -> None:
        """One ownership, from standby to its end."""
        try:
            await self._become_owner()
            await self._own()
        except _LocksLostError:
            logger.warning("subscriber %s has lost the store; it takes over again", self.subscriber.id)
            await self._start_over()
        except SubscriberFencedError as error:
            logger.warning("%s; stepping back", error, extra={"subscriber_id": self.subscriber.id})
            await self._step_back()
        except LayoutChangedError as error:
            logger.debug("%s", error)
            self._release_lock()
            self._set_phase("standby")
            if self._layout is not None:
                await self._layout.run(self.subscriber, self._head_at_start)
        except (StoppedError, StoreClosedError, LeftBehindError):
            raise
        except Exception as error:
            # Ours to mend; the loop must not end in silence.
            logger.exception("subscriber %s met an error that postbus did not expect", self.subscriber.id)
            self.patience.fail(error)
            if self._ownership is not None:
                await self._ownership.let_go()
            await self._step_back()

    async def _become_owner(self) -> None:
        times = 0
        while not await self.patience.run(self._try_to_own):
            self._set_phase("standby")
            if times == 0:
                logger.info("subscriber %s is active elsewhere; standing by", self.subscriber.id)
            if times % _TIMES_BETWEEN_LOOKS == 0:
                await self._see_others()
                await self._see_head()
                self._note_progress()
            times += 1
            await self.patience.sleep(_STANDBY_SECONDS, self._may_be_free)
            self._may_be_free.clear()

    async def _try_to_own(self) -> bool:
        if any(left.state != "stopped" for left in self._predecessors):
            return False
        self._predecessors.clear()
        if self._members is not None:
            # Also while it stands by: nobody is to split it for as long as somebody runs it whole.
            await self._members.join(group_of(self.subscriber.id, 1))
        if self._is_coordinated and not self._has_lock:
            self._has_lock = await self._store.subscriber_locks.try_acquire(self.subscriber.id)
            return self._has_lock
        return True

    async def _own(self) -> None:
        if self._ownership is not None:
            # Of a handler that would not end: what was processed before it is not to come again.
            await self._ownership.writer.write()
        checkpoint = await self.patience.run(self._claim)
        self.patience.recover()
        self._is_drained = self._drain is None
        ownership = self._ownership = Ownership(self.subscriber, checkpoint, self._around)
        self._set_phase("catching_up")
        # Whoever waits for a checkpoint has to tell the new owner.
        self._note_progress()
        logger.info(
            "subscriber %s is active from %d on",
            self.subscriber.id,
            checkpoint.position,
            extra={"subscriber_id": self.subscriber.id, "position": checkpoint.position},
        )
        while not self.patience.is_stopping:
            self._wake_up.clear()
            if self._is_lost:
                raise _LocksLostError
            if self._is_paused:
                await ownership.writer.write()
                self._set_phase("paused")
                await self._see_head()
            else:
                self._is_looking = True
                try:
                    if await self._drain_outbox(checkpoint):
                        await self._look(ownership)
                finally:
                    self._is_looking = False
                    self._note_progress()
            await self._wake_up.wait()
        raise StoppedError

    async def _drain_outbox(self, claim: Checkpoint) -> bool:
        """Whether nothing is left of the time when workers competed for the subscriber's events."""
        if self._drain is not None and not self._is_drained:
            run = self._drain.run(self.subscriber, claim, self.patience, self._has_changed)
            self._is_drained = await run
        return self._is_drained

    async def _look(self, ownership: Ownership) -> None:
        head = self._store.log.known_head
        if (
            self._phase != "live"
            or head - ownership.writer.position > self._around.config.catch_up_batch_size
        ):
            self._set_phase("catching_up")
        count = await ownership.look()
        # Whoever waits for a position that was skipped may have it written now.
        self._note_progress()
        if ownership.writer.is_due:
            await ownership.writer.write()
        if self._has_changed():
            return
        if self._phase != "live":
            logger.info(
                "subscriber %s has caught up after %d events",
                self.subscriber.id,
                count,
                extra={"subscriber_id": self.subscriber.id, "event_count": count},
            )
        self._set_phase("live")

    async def _claim(self) -> Checkpoint:
        checkpoints, subscriber = self._store.checkpoints, self.subscriber
        if subscriber.part is not None:
            assert self._store.layouts is not None, "only there subscribers are split"
            return await self._store.layouts.claim(subscriber.id)
        start = LogPosition(GlobalSequence(0))
        if await checkpoints.load(subscriber.id) is None:
            now = self._store.log.known_head if self._head_at_start is None else self._head_at_start
            start = await find_start(subscriber.start_from, self._store.log, now)
            if start.head > max(now, self._store.log.known_head):
                logger.warning(
                    "subscriber %s is to start after %d and the log is at %d: what is in between is skipped",
                    subscriber.id,
                    start.head,
                    self._store.log.known_head,
                )
        return await checkpoints.claim(subscriber.id, start)

    async def _see_others(self) -> None:
        """Ask how far the owner has come, and the workers that it may feed."""
        if self._layout is not None:
            await self._layout.learn(self.subscriber.id)
            return
        found = await self.patience.run(lambda: self._store.checkpoints.load(self.subscriber.id))
        self._known = None if found is None else found.position

    async def _see_head(self) -> None:
        """Whoever reads nothing has to ask how far it is behind."""
        await self.patience.run(self._store.log.head)

    async def _start_over(self) -> None:
        ownership, self._ownership = self._ownership, None
        self._is_lost = False
        self._look_at_halt()
        self._release_lock()
        if ownership is not None:
            self._known = self._written_by(ownership)
            await ownership.abandon()
        self._set_phase("standby")

    def _written_by(self, ownership: Ownership) -> GlobalSequence | None:
        # What workers left in the outbox is not processed, though the checkpoint is beyond it.
        return ownership.writer.written if self._is_drained else None

    async def _step_back(self) -> None:
        if self._ownership is not None:
            self._known = self._written_by(self._ownership)
            self._ownership.stop()
            self._ownership = None
        # The next ownership is another one, also if the locks were lost during this one.
        self._is_lost = False
        self._look_at_halt()
        self._release_lock()
        self._set_phase("standby")
        await self.patience.sleep(_SECONDS_AFTER_ERROR)
        self.patience.recover()

    async def _end(self) -> None:
        """Also when the task is cancelled: what was processed is written, and the lock released."""
        try:
            if self._ownership is not None:
                await self._ownership.let_go(ends_program=self._ends_program)
        finally:
            self._release_lock()
            if self._restart is None:
                self._leave()
                self._set_phase("stopped")
            else:
                # Another ownership begins, as if this one had been another process's.
                self._known, self._ownership = self.checkpoint, None
                self._set_phase("standby")

    def _leave(self) -> None:
        if self._members is not None:
            self._members.leave(group_of(self.subscriber.id, 1))

    def _release_lock(self) -> None:
        if self._has_lock:
            self._has_lock = False
            self._store.subscriber_locks.release(self.subscriber.id)
            logger.info(
                "subscriber %s is active here no more",
                self.subscriber.id,
                extra={"subscriber_id": self.subscriber.id},
            )

    def _go_on_without_handler(self) -> None:
        """The task is stuck in a handler that will not end: another one takes over."""
        if self._task is not None:
            self._left_tasks.add(self._task)
        if self._ownership is not None:
            self._ownership.stop()
        self.start()

    def _look_at_halt(self) -> None:
        self._halt.is_due = self._is_paused or self._is_lost or self.patience.is_stopping

    def _has_changed(self) -> bool:
        return self._halt.is_due

    def _set_phase(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._note_progress()
            if phase == "stopped" and self._part is not None:
                self._part.on_end()

    def _note_layout(self) -> None:
        if self._layout is not None and self._layout.known is not None:
            self._known = min(part.position for part in self._layout.known.parts)
        self._note_progress()

    def _note_progress(self) -> None:
        self._has_progressed.set()
        if self.on_change is not None:
            self.on_change()
        if self._part is not None:
            self._part.on_change()
