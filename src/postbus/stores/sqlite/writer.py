"""The one thread that writes: whatever has queued up while it was busy shares its next commit.

A commit waits for the disk, so it must not happen in the event loop, and one commit
for each event would let concurrent publishers wait for each other's disk.
"""

import asyncio
import enum
import logging
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from postbus.doorbell import Doorbell
from postbus.errors import BusLoopError, StoreBusyError, StoreClosedError
from postbus.events import Draft, GlobalSequence
from postbus.ports import OnStored
from postbus.stores.sqlite.group_commit import GroupCommit
from postbus.stores.sqlite.guard import TransactionGuard
from postbus.stores.sqlite.jobs import Call, Insert, Job
from postbus.stores.sqlite.nudge import Nudge

logger = logging.getLogger("postbus")

# How long a finished event may wait for a commit.
_FINISH_DELAY = 0.01
_SECONDS_AFTER_ERROR = 1.0
# A transactional handler that goes on for so long after its time was up is taken to hang.
_GRACE = 1.0
# How often the writer looks whether another process has written.
_TICK = 0.04
# And while nothing is written, after how many such looks it looks after its own file.
_IDLE_TICKS = 25
# As many times another process may have written meanwhile, unless it has told of each time.
_COMMITS_PER_TICK = 25
# How long the loop waits for the writer to take what it hands over.
_HAND_OVER_SECONDS = 0.004
# From so many waiting jobs on it pays to hand over half a group, so that loop and writer work side by side.
_LEAST_HAND_OVER = 32

T = TypeVar("T")

# Asking the system for the process id with every event would cost more than counting forks.
_fork_count = 0


def _count_fork() -> None:
    global _fork_count
    _fork_count += 1


os.register_at_fork(after_in_child=_count_fork)


class _Look(enum.Enum):
    NOW = enum.auto()


_LOOK_NOW = _Look.NOW


class Writer:
    """Runs a GroupCommit in a thread. Everything public is called in the event loop."""

    def __init__(
        self,
        path: Path,
        commit: GroupCommit,
        tick: Callable[[], bool],
        is_owner: Callable[[], bool],
        on_growth: Callable[[], None],
        announce: Callable[[], None],
        guard: TransactionGuard,
        bell: Doorbell,
    ) -> None:
        """*on_growth* is called in the event loop when the log may have grown, here or by other processes;
        *announce* in the writer's thread when this process has stored events."""
        self._path, self._commit, self._tick, self._is_owner = path, commit, tick, is_owner
        self._on_growth, self._announce, self._guard, self._bell = on_growth, announce, guard, bell
        self._told_head = commit.head
        self._loop = asyncio.get_running_loop()
        self._fork_count = _fork_count
        self._jobs: queue.SimpleQueue[Job | _Look | None] = queue.SimpleQueue()
        self._unsettled = 0
        self._finished: deque[GlobalSequence] = deque()
        self._is_finishing = False
        self._is_flush_due = False
        self._nudge = Nudge(self._loop, lambda: self._unsettled > 0, bell.answer)
        # The thread waits for jobs, and not for the disk.
        self._is_idle = False
        self._handed_over = -1
        self._hand_over_at = _LEAST_HAND_OVER
        self._is_handing_over = False
        self._taken = threading.Event()
        self._written_count = self._seen_written_count = self._tick_count = 0
        self._is_closed = False
        # A daemon: a program that ends without shutdown() must not hang; the store closes it at exit.
        self._thread = threading.Thread(target=self._run, name=f"postbus writer {path.name}", daemon=True)
        self._thread.start()

    def insert(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store drafts in the next commit."""
        self.submit(Insert(drafts, on_stored))
        is_new_group = self._handed_over != self._written_count
        if self._is_idle and is_new_group and self._jobs.qsize() >= self._hand_over_at:
            self._hand_over()

    async def call(
        self,
        run: Callable[[sqlite3.Connection], T],
        on_done: Callable[[], None] | None = None,
        *,
        waits_for_disk: bool = True,
    ) -> T:
        """Run something inside the next transaction and return its result once that is committed."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit(Call(run, future, on_done, waits_for_disk))  # type: ignore[arg-type]
        return await future

    def look_now(self) -> None:
        """Somebody says that another process has written: no need to wait for the next look."""
        if not self._is_closed:
            self._jobs.put(_LOOK_NOW)

    def finish(self, sequence: GlobalSequence) -> None:
        """Mark an event done in some commit soon, together with others: one for each would cost too much."""
        self._finished.append(sequence)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_later(_FINISH_DELAY, self._flush)

    async def flush(self) -> None:
        """Return when everything that was finished so far is written, so that readers see it."""
        if self._finished or self._unsettled or self._is_finishing:
            await self.call(lambda _: None)

    def close(self) -> None:
        """Write what is waiting, stop the thread and close the connection. Blocks; safe from any thread."""
        self._is_closed = True
        self._commit.closing.set()
        self._jobs.put(None)
        self._guard.hurry()
        while self._thread.is_alive():
            self._thread.join(_TICK)
            if self._guard.is_hanging(_GRACE):
                # A daemon: it does not keep the program from ending, and its transaction ends with it.
                logger.error("a transactional handler does not end: its thread is left behind")
                return

    def submit(self, job: Job) -> None:
        """Have the job done in the next commit; whoever made it looks at it afterwards."""
        if self._is_closed or self._fork_count != _fork_count or self._guard.is_lent:
            self._check_is_at_work()
        self._unsettled += 1
        self._jobs.put(job)
        if not self._nudge.is_armed:
            self._nudge.arm()

    def _check_is_at_work(self) -> None:
        if self._is_closed:
            raise StoreClosedError(f"the store on {self._path} was closed; open it again")
        if self._fork_count != _fork_count:
            raise BusLoopError(
                f"the store on {self._path} was opened before this process was forked; "
                "open it in the child: start the bus after the fork"
            )
        if self._guard.is_hanging(_GRACE):
            raise StoreBusyError(
                f"a transactional handler does not end and holds {self._path}; nothing was stored; "
                "keep such handlers to SQL"
            )

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self._finished or self._is_closed:
            return
        if not self._unsettled:
            written: asyncio.Future[None] = self._loop.create_future()
            written.add_done_callback(self._after_flush)
            self.submit(Call(lambda _: None, written))  # type: ignore[arg-type]
        else:
            self._is_flush_due = True
            self._loop.call_later(_FINISH_DELAY, self._flush)

    def _after_flush(self, written: "asyncio.Future[None]") -> None:
        error = written.exception()
        if error is not None:
            logger.error("can't write that events are done, trying again: %s", error)

    def _flush_later(self) -> None:
        if self._finished and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_later(_SECONDS_AFTER_ERROR, self._flush)

    def _hand_over(self) -> None:
        """Let the idle writer take what has queued up: it writes while this loop works on.

        Without this it would get the GIL only when the loop has nothing left to do,
        and the two would always wait for each other.
        """
        self._handed_over = self._written_count
        self._taken.clear()
        self._is_handing_over = True
        self._taken.wait(_HAND_OVER_SECONDS)
        self._is_handing_over = False

    def _settle(self, jobs: Sequence[Job], head: int) -> None:
        self._unsettled -= len(jobs)
        self._nudge.heard_count += 1
        if head != self._told_head:
            self._told_head = head
            self._on_growth()
        self._tell(jobs)

    def _tell(self, jobs: Sequence[Job]) -> None:
        for count, job in enumerate(jobs, 1):
            try:
                job.settle()
            except BaseException:
                # A handler may have ended the program: the others hear of their commit nevertheless.
                self._loop.call_soon(self._tell, jobs[count:])
                raise

    # From here on: the writer's thread.

    def _run(self) -> None:
        is_open = True
        looked_at = time.monotonic()
        while is_open:
            jobs, is_open, is_look_due = self._take_jobs()
            try:
                if jobs:
                    self._write(jobs)
                self._commit.checkpoint_if_due(self._is_owner)
                if is_look_due or time.monotonic() - looked_at >= _TICK:
                    self._look(1 if is_look_due else _COMMITS_PER_TICK)
                    looked_at = time.monotonic()
            except Exception:
                # Ours to mend, and no reason to leave all publishers waiting.
                logger.exception("the writer of %s met an error that postbus did not expect", self._path)
        # No further commit comes along for them.
        self._write([])
        self._commit.close()

    def _look(self, commit_count: int) -> None:
        self._tick_count += 1
        # While nothing is written there is little to lose, and who is idle shall take next to nothing.
        if self._written_count != self._seen_written_count or self._tick_count % _IDLE_TICKS == 0:
            self._seen_written_count = self._written_count
            self._commit.look_after_file(self._is_owner)
        if self._tick():
            self._commit.note_foreign_commits(commit_count)
            self._bell.ring(self._on_growth)

    def _take_jobs(self) -> tuple[list[Job], bool, bool]:
        """Everything that has queued up, whether there will be more, and whether to look for others' work."""
        try:
            self._is_idle = True
            first = self._jobs.get(timeout=_TICK)
        except queue.Empty:
            return [], True, False
        finally:
            self._is_idle = False
        # Nobody else takes any, so as many as there are now can be taken without waiting.
        taken = [first, *[self._jobs.get() for _ in range(self._jobs.qsize())]]
        jobs = [job for job in taken if job is not None and job is not _Look.NOW]
        if len(jobs) == len(taken):
            return jobs, True, False
        return jobs, None not in taken, _Look.NOW in taken

    def _write(self, jobs: list[Job]) -> None:
        head_before = self._commit.head
        self._hand_over_at = max(_LEAST_HAND_OVER, len(jobs) // 2)
        if self._is_handing_over:
            self._taken.set()
        # New events alone are one statement; with those that are finished, unless it can mark them too, they
        # would be a transaction of several. So these go after them, now and then, when no publisher waits.
        goes_alone = self._commit.insert(jobs, self._finished)
        if not goes_alone:
            goes_alone = bool(jobs) and all(isinstance(job, Insert) for job in jobs)
            self._commit_all(jobs, [] if goes_alone else self._take_finished())
        head = self._commit.head
        if jobs:
            self._written_count += 1
            self._bell.ring(self._settle, jobs, head)
            self._nudge.tell()
        if head != head_before:
            self._announce()
        if goes_alone and self._finished and time.monotonic() - self._commit.finished_at >= _FINISH_DELAY:
            # Set before they are taken: whoever finds none waiting sees that they are not written yet.
            self._is_finishing = True
            finished = self._take_finished()
            try:
                if not self._commit.finish(finished):
                    self._commit_all([], finished)
            finally:
                self._is_finishing = False

    def _take_finished(self) -> list[GlobalSequence]:
        self._commit.finished_at = time.monotonic()
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def _commit_all(self, jobs: list[Job], finished: list[GlobalSequence]) -> None:
        if not self._commit.write(jobs, finished) and finished:
            # They are done all the same: another commit takes them along.
            self._finished.extendleft(reversed(finished))
            self._bell.ring(self._flush_later)
