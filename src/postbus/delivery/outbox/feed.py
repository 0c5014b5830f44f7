"""Events of a subscriber whose workers compete: page after page goes into the outbox, with the checkpoint."""

from collections.abc import Callable, Sequence

from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import sequence_of
from postbus.delivery.patience import Patience
from postbus.events import DeadLetter, Event, OutboxEntry, SubscriberId
from postbus.ports import OutboxContents

# With so many events ahead of the workers there is no hurry: they are as well off in the log.
_MOST_WAITING = 20_000
_EVENTS_BETWEEN_LOOKS = 5_000
_SECONDS_BETWEEN_LOOKS = 0.05


class OutboxFeed:
    """Gives every event to the workers of the pool; no handler is called here."""

    is_handling = False

    def __init__(
        self,
        pool: SubscriberId,
        writer: CheckpointWriter,
        outbox: OutboxContents,
        patience: Patience,
        has_changed: Callable[[], bool],
    ) -> None:
        self._pool, self._writer, self._outbox = pool, writer, outbox
        self._patience, self._has_changed = patience, has_changed
        self._count_since_look = 0

    async def deliver(self, events: Sequence[Event]) -> int:
        """All of them in one transaction: each is in the outbox exactly when the checkpoint has passed it."""
        if not await self._wait_for_room():
            return 0
        await self._writer.write_fed(events, [OutboxEntry(sequence_of(event), event.id) for event in events])
        self._count_since_look += len(events)
        return len(events)

    async def retry(self, letter: DeadLetter) -> None:
        """A worker makes the attempt, and writes what became of it."""
        entry = OutboxEntry(sequence_of(letter), letter.id, letter.dead_letter_id)
        await self._writer.write_fed((), (entry,))

    async def _wait_for_room(self) -> bool:
        """Until the workers have got on; False: there is something else to be done."""
        while self._count_since_look >= _EVENTS_BETWEEN_LOOKS:
            if await self._patience.run(lambda: self._outbox.has_room(self._pool, _MOST_WAITING)):
                self._count_since_look = 0
                break
            await self._patience.sleep(_SECONDS_BETWEEN_LOOKS)
            if self._has_changed():
                return False
        return True
