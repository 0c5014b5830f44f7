"""Handlers of competing workers that work inside the transaction in which their row is deleted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from postbus.errors import StoreError, StoreUnavailableError, SubscriberFencedError
from postbus.events import BatchOutcome, Claimed, Event, LogPosition, RetryOutcome, SubscriberId
from postbus.stores.postgres.burials import note_retry
from postbus.stores.postgres.lent import TimedConnection
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.transactions import GRACE_SECONDS, LONGEST_PATIENCE, Batch

_NOBODY = SubscriberId("")


def _stays(_: int) -> LogPosition:
    raise AssertionError("a worker has no checkpoint")


@dataclass(kw_only=True, slots=True)
class OutboxBatch(Batch):
    """One event of the outbox for one handler.

    The row is not locked while the handler runs: whoever takes it over is not held up, and of two who have
    handled it only the one that still has the claim can commit.
    """

    row_queries: Mapping[str, str]
    claimed: Claimed
    mark: tuple[int, int]
    """What those know the transaction by who take over from a worker that is gone."""
    dead_letters_of: SubscriberId = _NOBODY
    epoch: int = 0
    server: str | None = None
    reached: Callable[[int], LogPosition] = _stays
    time_budget: float = 0.0

    async def run(self) -> BatchOutcome:
        """Call the handler; what is raised is never its own."""
        # Not super(): the class that it refers to is the one before it got its slots.
        try:
            return await Batch.run(self)
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            # A plain one would be taken for an answer to the handler, and cost the event an attempt.
            raise StoreUnavailableError(f"the row can't be handled at the moment: {error}") from error

    async def _take_checkpoint(self, connection: Connection) -> Callable[[Event], bool]:
        patience = min((self.timeout + GRACE_SECONDS) * 1000, LONGEST_PATIENCE)
        values = (self.claimed.row_id, self.claimed.claim, str(int(patience)), *self.mark)
        if await connection.fetchrow(self.row_queries["begin_handling"], *values) is None:
            raise SubscriberFencedError(self.subscriber_id, self.claimed.claim)
        return lambda _: False

    async def _finish(self, connection: Connection, _done: Sequence[Event]) -> None:
        values = (self.claimed.row_id, self.claimed.claim)
        if await connection.fetchval(self.row_queries["delete_row"], *values) is None:
            raise SubscriberFencedError(self.subscriber_id, self.claimed.claim)
        if self.retried is not None:
            resolved = RetryOutcome(self.retried, None)
            await note_retry(connection, self.queries, self.subscriber_id, resolved, self.now)

    async def _prove_writable(self) -> None:
        async with self.database.handler_transaction() as connection:
            ours = cast(Connection, TimedConnection(connection))
            await self._take_checkpoint(ours)
            row_ids, claims = [self.claimed.row_id], [self.claimed.claim]
            await ours.execute(self.row_queries["renew_rows"], row_ids, claims, self.mark[1])
