"""The loops of several parts of a subscriber in this instance, as one."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from postbus.delivery.service import Service
from postbus.delivery.subscriber import Subscriber
from postbus.events import Gap, GlobalSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTerms:
    """On which terms a loop serves a part: it leaves its lock to others, and ends instead of standing by."""

    on_change: Callable[[], None]
    """Its state or position may have changed."""
    on_end: Callable[[], None]
    up_to: GlobalSequence | None = None
    """Nothing beyond this number is delivered."""


MakePartLoop = Callable[[Subscriber, PartTerms], Service]


class PartLoops:
    """Does with all of them what is to be done with the subscriber."""

    def __init__(self) -> None:
        self._loops: dict[int, Service] = {}
        # Told to end by us: they have too much of the work.
        self._leaving: set[int] = set()
        self._is_paused = False

    def __len__(self) -> int:
        return len(self._loops)

    def __iter__(self) -> Iterator[Service]:
        return iter(tuple(self._loops.values()))

    def get(self, index: int) -> Service | None:
        """That of one part, if it is here."""
        return self._loops.get(index)

    @property
    def indexes(self) -> set[int]:
        """Which parts are here."""
        return set(self._loops)

    @property
    def staying(self) -> set[int]:
        """Which parts are here to stay."""
        return set(self._loops) - self._leaving

    def begin(self, index: int, loop: Service, head: GlobalSequence | None = None) -> None:
        """Serve a part from now on; while there is a pause, not yet."""
        self._loops[index] = loop
        if self._is_paused:
            loop.pause()
        loop.start(head)

    def step_aside(self, index: int) -> None:
        """End one after the event at hand."""
        self._leaving.add(index)
        self._loops[index].stop()

    def reap(self) -> list[int]:
        """Forget those that have ended; which parts they served."""
        ended = [index for index, loop in self._loops.items() if loop.state == "stopped"]
        for index in ended:
            del self._loops[index]
            self._leaving.discard(index)
        return ended

    def wake(self) -> None:
        """Look again."""
        for loop in self._loops.values():
            loop.wake()

    def lose(self) -> None:
        """All locks are lost: each ends after the event at hand."""
        for loop in self._loops.values():
            loop.lose()

    def pause(self) -> None:
        """Deliver nothing after the events at hand."""
        self._is_paused = True
        for loop in self._loops.values():
            loop.pause()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        for loop in self._loops.values():
            loop.resume()

    def stop(self) -> None:
        """End each after the event at hand."""
        for loop in self._loops.values():
            loop.stop()

    @property
    def is_at_rest(self) -> bool:
        """Whether a pause is complete."""
        return all(loop.is_at_rest for loop in self._loops.values())

    @property
    def reason(self) -> str | None:
        """Why one of them can't go on, if so."""
        return next((loop.reason for loop in self._loops.values() if loop.reason is not None), None)

    @property
    def state(self) -> str:
        """What they do, in a word: "standby" if there is none."""
        states = {loop.state for loop in self._loops.values()}
        if not states:
            return "standby"
        if len(states) == 1:
            (state,) = states
            return "catching_up" if state in ("starting", "standby", "stopped") else state
        return "failed" if "failed" in states else "catching_up"

    @property
    def missing(self) -> tuple[Gap, ...]:
        """Numbers that one of them has not found in the log, and that may be there by now."""
        return tuple(gap for loop in self._loops.values() for gap in loop.missing())

    def want_written(self, target: GlobalSequence) -> None:
        """Somebody waits for *target*."""
        for loop in self._loops.values():
            loop.want_written(target)

    async def look_at_gaps(self) -> None:
        """Tell of gaps that are open for long."""
        for loop in self:
            await loop.look_at_gaps()

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is the handler of one of them that asks."""
        return any(loop.is_run_by(task) for loop in self._loops.values())

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None" = None) -> None:
        """Return when all have ended, but for the one whose handler is *by*."""
        for loop in self:
            await loop.wait_until_stopped(by)

    async def cut_off(self, by: "asyncio.Task[object] | None") -> None:
        """End them in the middle of their events."""
        await asyncio.gather(*[loop.cut_off(by) for loop in self])
