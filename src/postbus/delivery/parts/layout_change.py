"""Splits a durable subscriber into another number of parts, without losing, repeating or reordering events.

Parts may only be replaced by others when all are at one position: then no event of a stream can come
before one that another part still has to process. So the old parts are run up to the furthest of them and
no further, by the one instance that changes the layout and has the locks of them all.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from postbus.delivery.parts.loops import MakePartLoop, PartLoops, PartTerms
from postbus.delivery.patience import Patience
from postbus.delivery.receivers import StatefulReceiver
from postbus.delivery.subscriber import Subscriber, split
from postbus.errors import LayoutChangedError
from postbus.events import Gap, GlobalSequence, Layout, LogPosition, Part, SubscriberId
from postbus.policy.partitions import part_id
from postbus.ports import Layouts, Store

logger = logging.getLogger("postbus")

_STANDBY_SECONDS = 0.5
_SECONDS_BETWEEN_LOOKS = 0.02


def group_of(subscriber_id: str, partitions: int) -> str:
    """The group of all instances that run the subscriber in this layout, or would if it had it."""
    return f"{subscriber_id}/{partitions}"


class LayoutChange:
    """Waits until nobody runs the subscriber in its old layout, and gives it the one its code asks for."""

    def __init__(
        self,
        store: Store,
        patience: Patience,
        loops: PartLoops,
        make_loop: MakePartLoop,
        on_change: Callable[[], None],
        waker: asyncio.Event,
        *,
        is_coordinated: bool,
    ) -> None:
        self._log, self._locks, self._outbox = store.log, store.subscriber_locks, store.outbox
        self._patience, self._loops = patience, loops
        assert store.layouts is not None, "only there subscribers are split"
        self._layouts: Layouts = store.layouts
        # None: there is nobody else to be asked.
        self._members = store.members if is_coordinated else None
        self._make_loop, self._on_change, self._waker = make_loop, on_change, waker
        self._has_changed = asyncio.Event()
        self._is_lost = False
        self.is_waiting = False
        """Whether this instance stands by for those that run the subscriber in its old layout."""
        self.known: Layout | None = None
        """The present layout, as it was last seen."""

    def lose(self) -> None:
        """All locks are lost."""
        self._is_lost = True
        self._loops.lose()

    async def learn(self, subscriber_id: SubscriberId) -> Layout | None:
        """See how the subscriber is split, and how far its parts have come. StoppedError."""
        layout = await self._patience.run(lambda: self._layouts.load(subscriber_id))
        self.known = None if layout is None else await self._without_outbox(subscriber_id, layout)
        self._on_change()
        return layout

    async def _without_outbox(self, subscriber_id: SubscriberId, layout: Layout) -> Layout:
        """What competing workers still have to process is not processed, though their feeder is beyond it."""
        outbox = self._outbox
        if layout.partitions > 1 or outbox is None:
            return layout
        oldest = await self._patience.run(lambda: outbox.oldest(subscriber_id, GlobalSequence(0)))
        (whole,) = layout.parts
        # Beyond an open gap it is the head that tells how far the feeder is.
        if oldest is None or oldest > (whole.position if whole.head is None else whole.head):
            return layout
        head = GlobalSequence(oldest - 1)
        gaps = tuple(Gap(gap.first, min(gap.last, head)) for gap in whole.open if gap.first <= head)
        # Somebody may have moved the position back by hand.
        position = min(whole.position, LogPosition(head, gaps).contiguous)
        return Layout(1, [replace(whole, position=position, head=head if gaps else None, open=gaps)])

    async def run(self, subscriber: Subscriber, head: GlobalSequence | None) -> None:
        """Return when the subscriber is split as it is to be. StoppedError.

        *head* is where the log was when this instance started.
        """
        has_told = False
        while True:
            layout = await self.learn(subscriber.id)
            found = 1 if layout is None else layout.partitions
            if found == subscriber.partitions and (found == 1 or layout is not None):
                self.is_waiting = False
                return
            if await self._is_free(subscriber, found) and await self._change(subscriber, found, head):
                continue
            if not has_told:
                has_told = True
                logger.info(
                    "subscriber %s has %d partitions as long as it runs elsewhere; standing by to make it %d",
                    subscriber.id,
                    found,
                    subscriber.partitions,
                )
            # Whoever reads nothing has to ask how far it is behind.
            await self._patience.run(self._log.head)
            await self._wait()

    async def _wait(self) -> None:
        self.is_waiting = True
        self._on_change()
        try:
            await self._patience.sleep(_STANDBY_SECONDS, self._waker)
        finally:
            self._waker.clear()

    async def _is_free(self, subscriber: Subscriber, found: int) -> bool:
        """Whether no instance is left that runs it as it was."""
        members = self._members
        if members is None:
            return True
        return not await self._patience.run(lambda: members.list(group_of(subscriber.id, found)))

    async def _change(self, subscriber: Subscriber, found: int, head: GlobalSequence | None) -> bool:
        """Whether it may be changed by now, by us or by another."""
        self._is_lost = False
        parts = [Part(index, found) for index in range(found)]
        # Its own lock first: only one instance changes the layout, and nobody runs it unsplit meanwhile.
        ids = dict.fromkeys([subscriber.id, *(part_id(subscriber.id, part) for part in parts)])
        async with self._locked(tuple(ids)) as is_locked:
            # Once more: one that came meanwhile stands by for a lock, and was here first.
            if not is_locked or not await self._is_free(subscriber, found):
                return False
            try:
                while await self._drain(subscriber, parts, head):
                    if await self._switch(subscriber, found):
                        return True
                    # One of them has closed a gap that is open for another.
                    await self._patience.sleep(_STANDBY_SECONDS)
            except LayoutChangedError:
                logger.debug("the layout of subscriber %s was changed by another", subscriber.id)
            return False

    async def _switch(self, subscriber: Subscriber, found: int) -> bool:
        wanted = subscriber.partitions
        is_done = await self._patience.run(lambda: self._layouts.switch(subscriber.id, found, wanted))
        if is_done:
            logger.info(
                "subscriber %s has %d partitions from now on; it had %d",
                subscriber.id,
                wanted,
                found,
                extra={"subscriber_id": subscriber.id},
            )
        return is_done

    async def _drain(self, subscriber: Subscriber, parts: list[Part], head: GlobalSequence | None) -> bool:
        """Run the old parts up to the furthest of them; False: they are not ours any more."""
        up_to = _furthest(await self.learn(subscriber.id))
        terms = PartTerms(on_change=self._note_change, on_end=self._note_change, up_to=up_to)
        # What it was as a whole may have one state for all streams: one part after the other.
        is_stateful = isinstance(subscriber.receiver, StatefulReceiver)
        for together in [[part] for part in parts] if is_stateful else [parts]:
            for part in together:
                self._loops.begin(part.index, self._make_loop(split(subscriber, part), terms), head)
            try:
                if not await self._reach(up_to):
                    return False
            finally:
                self._loops.stop()
                await self._loops.wait_until_stopped()
                self._loops.reap()
        return not self._is_lost

    async def _reach(self, up_to: GlobalSequence) -> bool:
        """Wait until all are there; False: one has ended."""
        while not all(loop.state == "live" and loop.is_idle_at(up_to) for loop in self._loops):
            if self._is_lost or any(loop.state == "stopped" for loop in self._loops):
                return False
            self._has_changed.clear()
            await self._patience.race(asyncio.ensure_future(self._has_changed.wait()))
            # Changes come with every event, and there may be many parts to look at.
            await self._patience.sleep(_SECONDS_BETWEEN_LOOKS)
        return True

    @asynccontextmanager
    async def _locked(self, ids: Sequence[SubscriberId]) -> AsyncIterator[bool]:
        """Hold all of these locks, or none; whether we do."""
        held: list[SubscriberId] = []
        try:
            for each in ids if self._members is not None else ():
                if not await self._patience.run(lambda id=each: self._locks.try_acquire(id)):  # type: ignore[misc]
                    break
                held.append(each)
            yield self._members is None or (len(held) == len(ids) and not self._is_lost)
        finally:
            for each in held:
                self._locks.release(each)

    def _note_change(self) -> None:
        self._has_changed.set()
        self._on_change()


def _furthest(layout: Layout | None) -> GlobalSequence:
    if layout is None:
        return GlobalSequence(0)
    heads = (each.position if each.head is None else each.head for each in layout.parts)
    return GlobalSequence(max(heads, default=0))
