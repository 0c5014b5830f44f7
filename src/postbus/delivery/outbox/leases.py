"""Keeps the leases of a worker's rows, and takes rows from workers that are gone."""

import logging

from postbus.delivery.outbox.hand import Hand
from postbus.errors import StoreError
from postbus.events import SubscriberId
from postbus.ports import Clock, OutboxWorkers

logger = logging.getLogger("postbus")

# How often to look whether another worker is gone, and how many times within a lease to renew it and to look
# for rows that nobody keeps.
_SECONDS_BETWEEN_LOOKS = 0.5
_LOOKS_PER_LEASE = 5
# Looking through a long outbox takes time: no more than this share of all time.
_SHARE_OF_TIME = 0.05


class Leases:
    """Looks after the rows of one pool, for as long as a worker is there."""

    def __init__(
        self, pool: SubscriberId, outbox: OutboxWorkers, hand: Hand, lease: float, clock: Clock
    ) -> None:
        self._pool, self._outbox, self._hand, self._clock = pool, outbox, hand, clock
        self._lease, self._step = lease, lease / _LOOKS_PER_LEASE
        self._workers: set[int] = set()
        self._renewed_at = clock.monotonic()
        self._reap_at = clock.monotonic()

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._look()
            except StoreError as error:
                # Asked again soon; what can't be renewed for so long is another's.
                logger.debug("the leases of %s can't be looked after: %s", self._pool, error)
            await self._clock.sleep(min(_SECONDS_BETWEEN_LOOKS, self._step))

    async def _look(self) -> None:
        now = self._clock.monotonic()
        if now - self._renewed_at >= self._step:
            self._renewed_at = now
            if older := self._hand.grow_older():
                await self._outbox.renew(self._pool, older)
        me, workers = await self._outbox.workers(self._pool)
        is_one_gone = not self._workers <= set(workers)
        self._workers = set(workers)
        # One worker is enough to do it.
        if me == min(workers, default=None) and (is_one_gone or now >= self._reap_at):
            await self._reap()
            taken = self._clock.monotonic() - now
            self._reap_at = now + max(self._step, taken / _SHARE_OF_TIME)

    async def _reap(self) -> None:
        count = await self._outbox.reap(self._pool, self._lease)
        if count:
            logger.warning(
                "%d events of %s come again: the worker that had them is gone",
                count,
                self._pool,
                extra={"subscriber_id": self._pool, "event_count": count},
            )
