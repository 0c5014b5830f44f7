"""How far the workers of a pool have come, all instances together, as far as this one knows."""

import asyncio
import contextlib
from collections.abc import Callable

from postbus.delivery.patience import Patience, StoppedError
from postbus.errors import StoreError
from postbus.events import Gap, GlobalSequence, Layout, LogPosition, SubscriberId
from postbus.policy.gaps import merge_gaps
from postbus.ports import Clock, Layouts, OutboxContents

# While somebody waits, the database is asked so often, at first and later on.
_SHORTEST_WAIT = 0.01
_LONGEST_WAIT = 0.1
# Whoever still waits has said so again by then.
_SECONDS_WANTED = 1.0


class PoolProgress:
    """Everything up to a number is processed when it was fed to the outbox and has no row there any more."""

    def __init__(
        self,
        pool: SubscriberId,
        layouts: Layouts,
        outbox: OutboxContents,
        patience: Patience,
        clock: Clock,
        on_look: Callable[[], None],
    ) -> None:
        self._pool, self._layouts, self._outbox = pool, layouts, outbox
        self._patience, self._clock, self._on_look = patience, clock, on_look
        self._fed: LogPosition | None = None
        self._oldest: GlobalSequence | None = None
        self._has_retries = False
        # There are no rows up to here, but for retries of dead letters.
        self._cleared = GlobalSequence(0)
        self._wanted_until = 0.0
        self._looker: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()

    @property
    def checkpoint(self) -> GlobalSequence | None:
        """Everything up to here is processed; None before it is known."""
        if self._fed is None:
            return None
        fed, oldest = self._fed.contiguous, self._oldest
        return fed if oldest is None or oldest > fed else GlobalSequence(oldest - 1)

    @property
    def missing(self) -> tuple[Gap, ...]:
        """Numbers that were not there when others were fed."""
        return () if self._fed is None else self._fed.open

    def has_processed(self, sequence: GlobalSequence) -> bool:
        """Whether this number and all others that were fed up to it are processed."""
        is_fed = self._fed is not None and self._fed.has_passed(sequence)
        return is_fed and (self._oldest is None or self._oldest > sequence)

    def is_idle_at(self, head: GlobalSequence) -> bool:
        """Whether nothing is left to be done up to there, and for no dead letter."""
        is_fed = self._fed is not None and self._fed.head >= head
        return is_fed and not self._has_retries and (self._oldest is None or self._oldest > head)

    def want(self) -> None:
        """Somebody waits: look again and again for a while."""
        self._wanted_until = self._clock.monotonic() + _SECONDS_WANTED
        if self._looker is None or self._looker.done():
            self._looker = asyncio.get_running_loop().create_task(self._watch(), name="postbus progress")

    def nudge(self) -> None:
        """Something was processed here: whoever waits need not wait longer."""
        self._nudge.set()

    def stop(self) -> None:
        """Look no more."""
        if self._looker is not None:
            self._looker.cancel()

    async def look(self) -> None:
        """Ask the database. StoreError."""
        layout = await self._layouts.load(self._pool)
        fed = self._fed
        if layout is not None:
            fed = _passed_by_all(layout)
            # Somebody may have moved it back by hand.
            self._cleared = min(self._cleared, fed.contiguous)
        # After it: what is in the outbox by now was fed before.
        oldest = await self._outbox.oldest(self._pool, self._cleared)
        has_retries = await self._outbox.has_retries(self._pool)
        # Together: they mean nothing without each other.
        self._fed, self._oldest, self._has_retries = fed, oldest, has_retries
        self._cleared = self.checkpoint or self._cleared
        self._on_look()

    async def _watch(self) -> None:
        wait = _SHORTEST_WAIT
        with contextlib.suppress(StoppedError):
            while self._clock.monotonic() < self._wanted_until:
                self._nudge.clear()
                with contextlib.suppress(StoreError):
                    await self.look()
                await self._patience.sleep(wait, self._nudge)
                wait = min(wait * 1.5, _LONGEST_WAIT)


def _passed_by_all(layout: Layout) -> LogPosition:
    """What others process in parts is processed when each part is beyond it; as a whole it has one."""
    head = min(part.position if part.head is None else part.head for part in layout.parts)
    gaps = (Gap(gap.first, min(gap.last, head)) for part in layout.parts for gap in part.open)
    return LogPosition(head, merge_gaps(gaps))
