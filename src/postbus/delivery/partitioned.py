"""A durable subscriber that is split into parts, which the instances share: those of this instance."""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from postbus.config import InstanceMode, ReliableDeliveryConfig
from postbus.delivery.parts.layout_change import LayoutChange, group_of
from postbus.delivery.parts.loops import MakePartLoop, PartLoops, PartTerms
from postbus.delivery.parts.progress import PartProgress
from postbus.delivery.parts.spread import Spread
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.service import Service
from postbus.delivery.subscriber import Subscriber
from postbus.errors import StoreClosedError, WaitsForItselfError
from postbus.events import Gap, GlobalSequence
from postbus.ports import Clock, Store

logger = logging.getLogger("postbus")

# How often to look who is there and how far the parts are that others run; and while somebody waits for them.
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_WHILE_AWAITED = 0.1
_SECONDS_AFTER_ERROR = 1.0


class PartitionedService:
    """Runs as many of the parts as is this instance's share, each in a loop of its own."""

    def __init__(
        self,
        subscriber: Subscriber,
        store: Store,
        config: ReliableDeliveryConfig,
        clock: Clock,
        noise: Callable[[], float],
        make_loop: MakePartLoop,
    ) -> None:
        self.subscriber, self._store, self._make_loop = subscriber, store, make_loop
        is_coordinated = config.instance_mode is InstanceMode.COORDINATED
        self._members = store.members if is_coordinated else None
        self._group = group_of(subscriber.id, subscriber.partitions)
        self._patience = Patience(subscriber.id, clock, noise, self._note_progress)
        self._loops = PartLoops()
        self._progress = PartProgress(self._loops)
        # Somebody has released a lock, or a loop has ended.
        self._look_again = asyncio.Event()
        self._layout = LayoutChange(
            store,
            self._patience,
            self._loops,
            make_loop,
            self._note_layout,
            self._look_again,
            is_coordinated=is_coordinated,
        )
        self._spread: Spread | None = None
        self._phase = "starting"
        # Whether this instance has had its share of the present layout since it began.
        self._is_spread = False
        self._is_awaited = self._is_resting = False
        self._task: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._head_at_start: GlobalSequence | None = None
        self._predecessors: list[Service] = []
        self._has_progressed = asyncio.Event()

    @property
    def state(self) -> str:
        """starting, catching_up, live, standby, paused, stopped or failed: what this instance's parts do."""
        if self._phase == "stopped":
            return "stopped"
        if self._patience.reason is not None:
            return "failed"
        if not len(self._loops):
            return "standby" if self._layout.is_waiting else self._phase
        # Those of an old layout come to an end, not to the end of the log.
        return "catching_up" if self._loops.state == "live" and not self._is_spread else self._loops.state

    @property
    def reason(self) -> str | None:
        """Why nothing goes on at the moment, if so."""
        return self._patience.reason or self._loops.reason

    @property
    def checkpoint(self) -> GlobalSequence | None:
        """Up to where all parts have processed everything, also those that others run; None: not known."""
        return self._progress.checkpoint

    @property
    def position(self) -> GlobalSequence:
        """Everything up to here was processed by all parts, as far as this instance knows."""
        return self._progress.position

    def has_written(self, sequence: GlobalSequence) -> bool:
        """Whether this number was processed and that is written, whichever part it is in."""
        return self._progress.has_written(sequence)

    def missing(self, *, here: bool = False) -> tuple[Gap, ...]:
        """Numbers that were not there when the log was read, for any of the parts, and may be by now."""
        return self._loops.missing if here else self._progress.missing

    def want_written(self, target: GlobalSequence) -> None:
        """Write *target* as soon as it is processed here, and ask more often how far the others are."""
        self._loops.want_written(target)
        self._is_awaited = True
        if self._is_resting:
            self._look_again.set()

    @property
    def is_active(self) -> bool:
        """Whether this instance delivers, and does so now."""
        return self.state in ("starting", "catching_up", "live")

    def is_idle_at(self, head: GlobalSequence) -> bool:
        """Whether this instance's parts are there."""
        return self._is_spread and all(loop.is_idle_at(head) for loop in self._loops)

    @property
    def is_at_rest(self) -> bool:
        """Whether a pause is complete in this instance."""
        return self._loops.is_at_rest

    @property
    def is_begun(self) -> bool:
        """Whether the bus was started."""
        return self._task is not None

    def start(self, head: GlobalSequence | None = None) -> None:
        """Begin, in a task of its own; *head* is where the log is at this moment, if that is known."""
        if self._head_at_start is None:
            self._head_at_start = self._store.log.known_head if head is None else head
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"postbus partitions {self.subscriber.id}", context=contextvars.Context()
        )

    def follow(self, predecessors: list[Service]) -> None:
        """Those of the same id that were unsubscribed have to end first."""
        self._predecessors = predecessors

    def wake(self) -> None:
        """Look again: the log may have grown, or somebody wants something."""
        self._loops.wake()

    def try_again(self) -> None:
        """Somebody has let go of something."""
        self._look_again.set()

    def lose(self) -> None:
        """All locks are lost: deliver nothing after the events at hand."""
        self._layout.lose()
        self._look_again.set()

    def pause(self) -> None:
        """Deliver nothing after the events at hand; the parts stay with this instance."""
        self._loops.pause()

    def resume(self) -> None:
        """Go on."""
        self._loops.resume()
        self._note_progress()

    def stop(self) -> None:
        """End after the events at hand, what was processed written."""
        self._patience.stop()
        # First, so that others know when they hear of a lock that is free.
        self._leave()
        self._loops.stop()
        if self._restart is not None:
            self._restart.cancel()
        if self._task is None or self._restart is not None:
            self._set_phase("stopped")

    async def look_at_gaps(self) -> None:
        """Tell of gaps that are open for long."""
        await self._loops.look_at_gaps()

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is the subscriber's own handler that asks, and would wait for itself."""
        return self._loops.is_run_by(task)

    def check_waits_not_for_itself(self) -> None:
        """Refuse a wait that could never end."""
        if self.is_run_by(asyncio.current_task()):
            raise WaitsForItselfError(self.subscriber.id)

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None" = None) -> None:
        """Return when it has ended; neither a handler that was given up nor *by* is waited for."""
        if self.is_run_by(by):
            await self._loops.wait_until_stopped(by)
            return
        while self._phase != "stopped":
            await self.wait_for_change()

    async def cut_off(self, by: "asyncio.Task[object] | None") -> None:
        """End it in the middle of its events, which are delivered again by the next start."""
        self.stop()
        await self._loops.cut_off(by)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    async def wait_for_change(self) -> None:
        """Return when the state or the position may have changed."""
        self._has_progressed.clear()
        await self._has_progressed.wait()

    async def _run(self) -> None:
        try:
            while True:
                await self._serve_whatever_happens()
        except StoppedError:
            pass
        except asyncio.CancelledError:
            if not self._patience.is_stopping:
                self._start_again_later()
            raise
        except StoreClosedError as error:
            if not self._patience.is_stopping:
                logger.error("subscriber %s stops: %s", self.subscriber.id, error)
            self._patience.reason = str(error)
        finally:
            await self._end()

    def _start_again_later(self) -> None:
        """Somebody cancelled the task, and nobody has told it to stop: a library, or a stray cancel()."""
        logger.warning(
            "the task of subscriber %s was cancelled from outside; it starts again", self.subscriber.id
        )
        self._restart = asyncio.get_running_loop().call_later(_SECONDS_AFTER_ERROR, self._start_again)

    def _start_again(self) -> None:
        self._restart = None
        if not self._patience.is_stopping:
            self.start()

    async def _serve_whatever_happens(self) -> None:
        try:
            await self._serve()
        except (StoppedError, StoreClosedError):
            raise
        except Exception as error:
            # Ours to mend; it must not end in silence.
            logger.exception("subscriber %s met an error that postbus did not expect", self.subscriber.id)
            self._patience.fail(error)
            await self._end_loops()
            await self._patience.sleep(_SECONDS_AFTER_ERROR)
            self._patience.recover()

    async def _serve(self) -> None:
        """One layout, until there is another. StoppedError."""
        self._is_spread = False
        for left in self._predecessors:
            await self._patience.race(asyncio.ensure_future(left.wait_until_stopped()))
        self._predecessors.clear()
        members = self._members
        if members is not None:
            await self._patience.run(lambda: members.join(self._group))
        await self._layout.run(self.subscriber, self._head_at_start)
        self._spread = Spread(
            self.subscriber,
            self._group,
            members,
            self._store.subscriber_locks,
            self._patience,
            self._loops,
            self._make_loop,
            PartTerms(on_change=self._note_progress, on_end=self._look_again.set),
        )
        await self._share(self._spread)

    async def _share(self, spread: Spread) -> None:
        """Have this instance's share of the parts until the layout is another one. StoppedError."""
        while True:
            self._look_again.clear()
            spread.release_ended()
            layout = await self._layout.learn(self.subscriber.id)
            if layout is None or layout.partitions != self.subscriber.partitions:
                await self._end_loops()
                return
            await spread.look()
            if not len(self._loops):
                # Whoever reads nothing has to ask how far it is behind.
                await self._patience.run(self._store.log.head)
            self._is_spread, self._phase = True, "standby"
            self._note_progress()
            await self._rest()

    async def _rest(self) -> None:
        seconds = _SECONDS_WHILE_AWAITED if self._is_awaited else _SECONDS_BETWEEN_LOOKS
        self._is_resting, self._is_awaited = not self._is_awaited, False
        await self._patience.sleep(seconds, self._look_again)
        self._is_resting = False

    async def _end_loops(self) -> None:
        self._loops.stop()
        await self._loops.wait_until_stopped()
        if self._spread is not None:
            self._spread.release_ended()

    async def _end(self) -> None:
        """Also when the task is cancelled: what was processed is written, and the locks are released."""
        try:
            await self._end_loops()
        finally:
            self._leave()
            self._set_phase("stopped" if self._restart is None else "standby")

    def _leave(self) -> None:
        if self._members is not None:
            self._members.leave(self._group)

    def _set_phase(self, phase: str) -> None:
        self._phase = phase
        self._note_progress()

    def _note_layout(self) -> None:
        self._progress.layout = self._layout.known
        self._note_progress()

    def _note_progress(self) -> None:
        self._has_progressed.set()
