"""Group commit: what queues up while a write is in flight goes together in the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

J = TypeVar("J")


def _count_one(_: object) -> int:
    return 1


class Groups(Generic[J]):
    """Hands jobs over in groups, in their order; *at_once* groups may be in flight at the same time.

    *flush* sees to every job of a group. If it raises, *refuse* is called for each of them with the error:
    no job is left without an answer, whoever waits for it, or nobody. The sizes of a group's jobs are not
    more than *largest* together; a job that is larger goes alone.
    """

    def __init__(
        self,
        flush: Callable[[list[J]], Awaitable[None]],
        refuse: Callable[[J, BaseException], None],
        *,
        at_once: int = 1,
        size_of: Callable[[J], int] = _count_one,
        largest: int = 1000,
    ) -> None:
        self._flush, self._refuse, self._at_once = flush, refuse, at_once
        self._size_of, self._largest = size_of, largest
        self._waiting: deque[J] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        # Those that are going to look for jobs in this or the next turn of the event loop.
        self._looking: set[asyncio.Task[None]] = set()

    def submit(self, job: J) -> None:
        """Put it into the next group. All jobs of one turn of the event loop can go together."""
        self._waiting.append(job)
        if not self._looking and len(self._workers) < self._at_once:
            self._start()

    @property
    def is_idle(self) -> bool:
        """Whether no job is waiting or in flight."""
        return not self._workers

    async def drain(self) -> None:
        """Return when no job is waiting or in flight."""
        while self._workers:
            await asyncio.wait(self._workers)

    def _start(self) -> None:
        worker = asyncio.get_running_loop().create_task(self._work(), name="postbus group commit")
        self._workers.add(worker)
        self._looking.add(worker)
        worker.add_done_callback(self._on_done)

    async def _work(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while True:
            self._looking.discard(me)
            if not self._waiting:
                return
            await self._flush_group(self._take())
            # Those who were answered just now have the next turn: what they submit in it comes along.
            self._looking.add(me)
            await asyncio.sleep(0)

    async def _flush_group(self, group: list[J]) -> None:
        try:
            await self._flush(group)
        except BaseException as error:
            for job in group:
                self._refuse(job, error)
            if not isinstance(error, Exception):
                raise

    def _take(self) -> list[J]:
        waiting, room = self._waiting, self._largest
        group: list[J] = []
        while waiting:
            room -= self._size_of(waiting[0])
            if room < 0 and group:
                break
            group.append(waiting.popleft())
        return group

    def _on_done(self, worker: "asyncio.Task[None]") -> None:
        self._workers.discard(worker)
        self._looking.discard(worker)
        if worker.cancelled():
            # The event loop is about to end: nobody will take the others.
            while self._waiting and not self._workers:
                self._refuse(self._waiting.popleft(), asyncio.CancelledError())
        elif self._waiting and not self._looking:
            self._start()
