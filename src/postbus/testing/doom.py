"""When a life ends: counts how often its crash point is passed, and ends everything at once."""

import asyncio
import threading
from typing import Literal, get_args

from postbus.errors import StoreClosedError
from postbus.ports import OnStored

CrashPoint = Literal[
    "before_publish",
    "after_publish",
    "before_handler",
    "after_handler",
    "before_checkpoint",
    "after_checkpoint",
]
CRASH_POINTS: tuple[CrashPoint, ...] = get_args(CrashPoint)
"""Where a life can end: around the storing of an event, the call of a handler, and the write that
remembers the delivery (of a subscriber its checkpoint, of a handler without an id the event's status)."""

# A task that takes no notice of its cancellation is left behind after so many seconds.
_GRACE = 1.0


class SimulatedCrashError(StoreClosedError):
    """This bus has died at its crash point: nothing that it still does has an effect."""

    def __init__(self, point: CrashPoint) -> None:
        super().__init__(f"this bus has died at the crash point {point!r}; nothing was written")
        self.point = point


class Doom:
    """The life of one bus, which ends when *point* is reached for the *nth* time."""

    def __init__(self, point: CrashPoint, nth: int) -> None:
        self._point, self._left = point, nth
        self._guard = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Who is there before it begins is no part of this life. All that comes is, as it would be in
        # a process of its own: the tasks of the bus, of the handlers, of whoever publishes.
        self._bystanders = asyncio.all_tasks()
        self._ended: set[asyncio.Task[object]] = set()
        self.is_dead = False
        self.died: asyncio.Future[None] = self._loop.create_future()
        self._unanswered: list[OnStored] = []

    @property
    def error(self) -> SimulatedCrashError:
        """What whoever still asks a dead bus for something gets."""
        return SimulatedCrashError(self._point)

    def is_reached(self, point: CrashPoint) -> bool:
        """Whether the life ends here and now. Safe from any thread."""
        if point != self._point:
            return False
        with self._guard:
            self._left -= 1
            if self._left:
                return False
        self.is_dead = True
        if threading.get_ident() == self._thread:
            self._end()
        else:
            self._loop.call_soon_threadsafe(self._end)
        return True

    async def pass_by(self, point: CrashPoint) -> None:
        """Go on, unless the life has ended or ends here."""
        await self.check_alive()
        if self.is_reached(point):
            await self.check_alive()

    async def check_alive(self) -> None:
        """Go on, unless the life has ended."""
        if self.is_dead:
            task = asyncio.current_task()
            if task in self._ended:
                # It may have survived its cancellation; an error would only make it try again.
                task.cancel()
            await asyncio.sleep(0)
            raise self.error

    def leave_unanswered(self, on_stored: OnStored) -> None:
        """Whoever published this learns no more what became of it."""
        self._unanswered.append(on_stored)

    async def wait_until_ended(self) -> None:
        """Return when no task of the life runs any more."""
        await self.died
        if self._ended:
            await asyncio.wait(self._ended, timeout=_GRACE)
        # Only a bystander can still be waiting for an answer.
        for on_stored in self._unanswered:
            on_stored((), (), self.error)

    def _end(self) -> None:
        # A connection that is on its way is nobody's yet, and its driver does not bear to be cancelled.
        alive = {task for task in asyncio.all_tasks(self._loop) if task.get_name() != "postbus connecting"}
        self._ended = alive - self._bystanders
        for task in self._ended:
            task.cancel()
        self.died.set_result(None)
