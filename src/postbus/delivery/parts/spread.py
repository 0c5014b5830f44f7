"""Spreads the parts of a subscriber evenly over the instances: takes what is free, gives up the excess."""

import logging

from postbus.delivery.parts.loops import MakePartLoop, PartLoops, PartTerms
from postbus.delivery.patience import Patience
from postbus.delivery.subscriber import Subscriber, split
from postbus.events import Part
from postbus.policy.partitions import fair_share, part_id, to_give_up, to_take
from postbus.ports import Members, SubscriberLocks

logger = logging.getLogger("postbus")


class Spread:
    """Holds the locks of the parts whose loops are here, each until its loop has ended."""

    def __init__(
        self,
        subscriber: Subscriber,
        group: str,
        members: Members | None,
        locks: SubscriberLocks,
        patience: Patience,
        loops: PartLoops,
        make_loop: MakePartLoop,
        terms: PartTerms,
    ) -> None:
        self._subscriber, self._group, self._members = subscriber, group, members
        self._locks, self._patience, self._loops = locks, patience, loops
        self._make_loop, self._terms = make_loop, terms
        count = subscriber.partitions
        self._parts = [Part(index, count) for index in range(count)]
        self._ids = [part_id(subscriber.id, part) for part in self._parts]

    async def look(self) -> None:
        """Come nearer to this instance's share of the parts. StoppedError."""
        if self._members is None:
            # There is nobody else.
            for part in self._parts:
                if self._loops.get(part.index) is None:
                    self._begin(part)
            return
        members = await self._patience.run(self._list_members)
        me = self._members.number
        if me is None:
            # The session was lost just now, and with it everything we had.
            return
        holders = await self._patience.run(self._list_holders)
        await self._share(me, members, holders)

    def release_ended(self) -> bool:
        """Let others have the parts whose loops have ended; whether there were any."""
        ended = self._loops.reap()
        for index in ended if self._members is not None else ():
            self._locks.release(self._ids[index])
        return bool(ended)

    async def _share(self, me: int, members: list[int], holders: list[int | None]) -> None:
        # What we have is ours whatever the server has shown, and a lock on its way back is not.
        here = self._loops.indexes
        holders = [me if at in here else None if who == me else who for at, who in enumerate(holders)]
        share = fair_share(me, members, holders)
        for index in to_give_up(self._loops.staying, share):
            logger.info("subscriber %s lets go of part %s", self._subscriber.id, self._ids[index])
            self._loops.step_aside(index)
        for index in to_take(me, members, holders):
            if len(self._loops.staying) >= share or self._patience.is_stopping:
                return
            if await self._patience.run(lambda at=index: self._locks.try_acquire(self._ids[at])):  # type: ignore[misc]
                self._begin(self._parts[index])

    def _begin(self, part: Part) -> None:
        self._loops.begin(part.index, self._make_loop(split(self._subscriber, part), self._terms))

    async def _list_members(self) -> list[int]:
        assert self._members is not None
        return await self._members.list(self._group)

    async def _list_holders(self) -> list[int | None]:
        assert self._members is not None
        return await self._members.holders(self._ids)
