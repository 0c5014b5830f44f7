"""Events of a subscriber whose workers compete: page after page goes into the outbox, with the checkpoint."""

from collections.abc import Sequence

from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import sequence_of
from postbus.events import DeadLetter, Event, OutboxEntry


class OutboxFeed:
    """Gives every event to the workers of the pool; no handler is called here."""

    is_handling = False

    def __init__(self, writer: CheckpointWriter) -> None:
        self._writer = writer

    async def deliver(self, events: Sequence[Event]) -> int:
        """All of them in one transaction: each is in the outbox exactly when the checkpoint has passed it."""
        await self._writer.write_fed(events, [OutboxEntry(sequence_of(event), event.id) for event in events])
        return len(events)

    async def retry(self, letter: DeadLetter) -> None:
        """A worker makes the attempt, and writes what became of it."""
        entry = OutboxEntry(sequence_of(letter), letter.id, letter.dead_letter_id)
        await self._writer.write_fed((), (entry,))
