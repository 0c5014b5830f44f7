"""Notices a sequence that was set back: it gives numbers again that subscribers have passed."""

import contextlib
from collections.abc import Sequence

from postbus.errors import StoreError, UnsoundLogError
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.soundness import find_numbers_that_come_again


class DrawnNumbers:
    """The numbers that the inserts of this process got. Whoever inserts later gets a higher one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.highest = 0
        """Asked before an insert is sent: what it gets is above."""
        # The server may come back without the last commits, and rightly give their numbers to others.
        database.session.on_lost(self._forget)

    def note(self, highest: int) -> None:
        """An insert got numbers up to this one."""
        if highest > self.highest:
            self.highest = highest

    async def find_fault(self, numbers: Sequence[int]) -> UnsoundLogError | None:
        """What to tell whoever got these numbers, some of them no higher than one before; None: nothing."""
        fault = None
        # The events are stored: if it can't be asked, there is nothing to be told.
        with contextlib.suppress(StoreError):
            async with self._database.connection() as connection:
                fault = await find_numbers_that_come_again(connection, self._database.schema)
        if fault is None:
            # Another server: there is nothing to compare with any more.
            self.highest = max(numbers)
            return None
        return UnsoundLogError(
            f"stored with the numbers {min(numbers)} to {max(numbers)}, which subscribers may have passed "
            f"and will then not get: {fault}; then store these events once more, or set last_global_sequence "
            f"in event_bus_checkpoints to {min(numbers) - 1} while no bus is running"
        )

    def _forget(self) -> None:
        self.highest = 0
