"""A worker of a pool: claims rows of the outbox and has handlers run, so many at once."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from postbus.delivery.outbox.crew import Crew
from postbus.delivery.outbox.hand import Hand
from postbus.delivery.outbox.leases import Leases
from postbus.delivery.outbox.runner import Runner, TakeEffects
from postbus.delivery.outbox.settling import Settling
from postbus.delivery.patience import Patience, StoppedError
from postbus.delivery.subscriber import Subscriber
from postbus.delivery.suspects import Suspects
from postbus.errors import StoreClosedError
from postbus.events import Claimed
from postbus.policy.claims import room_for, rows_ahead
from postbus.ports import Clock, Outbox

logger = logging.getLogger("postbus")

# With more rows that were processed and not deleted yet, no new ones are claimed.
_MOST_UNWRITTEN = 2_000
_SECONDS_TO_GIVE_BACK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What a worker needs of its bus."""

    outbox: Outbox
    suspects: Suspects
    clock: Clock
    noise: Callable[[], float]
    lease: float
    """After so many seconds without a sign of life its rows are another's."""


class Worker:
    """Works for one subscriber in one instance. Whatever goes wrong, it says so and goes on."""

    def __init__(
        self,
        subscriber: Subscriber,
        workplace: Workplace,
        on_change: Callable[[], None],
        *,
        concurrency: int,
        take_effects: TakeEffects | None = None,
        is_to_halt: Callable[[], bool] = lambda: False,
    ) -> None:
        """*is_to_halt* is asked before each event, where somebody else decides over a pause."""
        self._subscriber, self._at, self._on_change = subscriber, workplace, on_change
        self._concurrency, self._take_effects = concurrency, take_effects
        self._is_to_halt = is_to_halt
        self._outbox, self._clock = workplace.outbox, workplace.clock
        self.patience = Patience(subscriber.id, workplace.clock, workplace.noise, on_change)
        self._hand = Hand(self._note_low, self.wake)
        self._settling = Settling(
            subscriber,
            self._outbox,
            self._hand,
            self.patience,
            self._clock,
            workplace.noise,
            self._note_settled,
        )
        self._crew = Crew(f"worker of {subscriber.id}")
        self._leases: asyncio.Task[None] | None = None
        self._runners: dict[asyncio.Task[None], Runner] = {}
        # Their handlers would not end.
        self._left: set[asyncio.Task[None]] = set()
        self._has_fewer = asyncio.Event()
        self._wake_up = asyncio.Event()
        # How many rows should be ahead of the runners; when some were claimed last, how many were begun then.
        self._ahead, self._claimed_at, self._begun_count = 1, 0.0, 0
        self._is_paused = False
        # The session was lost, and with it the number under which the rows in hand were claimed.
        self._is_lost = False
        # Whether there may be rows that nobody has.
        self._has_more = True
        self.is_behind = False
        """Whether there were more rows than this worker had room for."""
        self.is_ready = False
        """Whether it has looked for rows."""
        self.is_stopped = False

    @property
    def is_at_rest(self) -> bool:
        """Whether no handler runs, and nothing is left to be written of those that did."""
        return not self._hand.is_holding

    def start(self) -> None:
        """Begin, in tasks of its own."""
        self._outbox.watch(self._subscriber.id, self.wake)
        for _ in range(self._concurrency):
            self._start_runner()
        pool, lease = self._subscriber.id, self._at.lease
        self._leases = self._crew.keep(Leases(pool, self._outbox, self._hand, lease, self._clock).keep)
        self._crew.keep(self._run)

    def wake(self) -> None:
        """There may be rows to claim."""
        self._has_more = True
        self._wake_up.set()

    def want_written(self) -> None:
        """Somebody waits for what was processed."""
        self._settling.want()

    def pause(self) -> None:
        """Begin with no row until resume()."""
        self._is_paused = True
        self._wake_up.set()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._hand.release_takers()
        self.wake()

    def lose(self) -> None:
        """Others may take what this worker has: begin with none of it."""
        self._is_lost = True
        self._wake_up.set()

    def stop(self) -> None:
        """End after the handlers at hand; what was not begun is given back at once."""
        self.patience.stop()
        self._hand.release_takers()
        self._wake_up.set()

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is a handler that asks."""
        return task in self._runners or task in self._left

    async def cut_off(self, by: "asyncio.Task[object] | None") -> None:
        """End it in the middle of its events, which others get."""
        self.stop()
        await self._crew.cut_off(by, _SECONDS_TO_GIVE_BACK)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS_TO_GIVE_BACK):
                await self._settling.drain()
                await self._settling.give_back(self._hand.held)
        self._end()

    async def _run(self) -> None:
        try:
            while not self.patience.is_stopping:
                self._wake_up.clear()
                await self._look()
                await self._wake_up.wait()
        except StoppedError:
            pass
        except StoreClosedError as error:
            if not self.patience.is_stopping:
                logger.error("the worker of %s stops: %s", self._subscriber.id, error)
            self.patience.fail(error)
            self.stop()
        finally:
            if self.patience.is_stopping:
                await self._finish()

    async def _look(self) -> None:
        if self._is_paused or self._is_lost:
            await self._settling.give_back(self._hand.take_back())
            await self._settling.drain()
        if self._is_lost:
            # First: it may be lost again meanwhile.
            self._is_lost = False
            await self.patience.run(lambda: self._outbox.renew(self._subscriber.id, self._hand.held))
        while self._may_begin() and self._has_more and (room := self._room()):
            # First: what comes while we ask may not be in the answer.
            self._has_more = False
            self._note_pace()
            claimed = await self.patience.run(lambda: self._claim(room))
            self._hand.add(claimed, self._ahead)
            self.is_behind = len(claimed) >= room
            self._has_more |= self.is_behind
        self.is_ready = True
        self._on_change()

    def _note_pace(self) -> None:
        now, begun_count = self._clock.monotonic(), self._hand.taken_count
        if begun_count > self._begun_count:
            self._ahead = rows_ahead(begun_count - self._begun_count, now - self._claimed_at)
        self._claimed_at, self._begun_count = now, begun_count

    async def _claim(self, room: int) -> list[Claimed]:
        return await self._outbox.claim(self._subscriber.id, room, with_suspect=self._hand.suspect is None)

    def _room(self) -> int:
        if self._settling.unwritten_count > _MOST_UNWRITTEN:
            return 0
        return room_for(self._hand.waiting_count, self._ahead, self._hand.idle_count)

    def _may_begin(self) -> bool:
        is_halted = self._is_paused or self._is_lost or self.patience.is_stopping
        return not is_halted and not self._is_to_halt()

    async def _finish(self) -> None:
        """Nothing is begun any more."""
        self._crew.stop()
        await self._settling.give_back(self._hand.take_back())
        while self._runners:
            self._has_fewer.clear()
            await self._has_fewer.wait()
        await self._settling.drain()
        self._end()

    def _end(self) -> None:
        if self._leases is not None:
            self._leases.cancel()
        self._outbox.unwatch(self._subscriber.id, self.wake)
        self._outbox.leave(self._subscriber.id)
        self.is_stopped = True
        self._on_change()

    def _start_runner(self) -> None:
        runner = Runner(
            self._subscriber,
            self._outbox,
            self._hand,
            self._settling,
            self.patience,
            self._at.suspects,
            self._clock,
            self._may_begin,
            self._leave,
            self._take_effects,
        )
        task = self._crew.run(runner.run())
        self._runners[task] = runner
        task.add_done_callback(self._end_runner)

    def _end_runner(self, task: "asyncio.Task[None]") -> None:
        self._left.discard(task)
        runner = self._runners.pop(task, None)
        self._has_fewer.set()
        # Unless it was left behind before.
        if runner is not None and not self.patience.is_stopping:
            if runner.current is not None:
                self._crew.run(self._settling.give_back([runner.current]))
            self._start_runner()

    def _leave(self, runner: Runner) -> None:
        """Its handler will not end: another runner takes its place."""
        (task,) = (task for task, each in self._runners.items() if each is runner)
        del self._runners[task]
        self._left.add(task)
        self._has_fewer.set()
        self._crew.run(runner.give_up())
        if not self.patience.is_stopping:
            self._start_runner()

    def _note_low(self) -> None:
        if self._has_more:
            self._wake_up.set()

    def _note_settled(self) -> None:
        if self._has_more:
            self._wake_up.set()
        self._on_change()
