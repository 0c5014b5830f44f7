"""Events on their way through the in-process handlers, in SQLite."""

import asyncio
from collections.abc import Callable, Sequence

from postbus.errors import StoreError
from postbus.events import Draft, EventStatus, GlobalSequence
from postbus.ports import Clock, OnStored
from postbus.stores.named_queries import load_queries
from postbus.stores.sqlite.access import FileAccess
from postbus.stores.sqlite.rows import moment_to_text, sequences_to_json

_QUERIES = load_queries("postbus.stores.sqlite", "queries.sql")
_PENDING = EventStatus.PENDING


class SQLiteEventQueue:
    """The EventQueue port; *announce* tells a bus of this process that events are pending."""

    def __init__(self, file: FileAccess, clock: Clock, announce: Callable[[], None]) -> None:
        self._file, self._clock, self._announce = file, clock, announce

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts in the next commit, all or none."""
        if may_be_pending(drafts):
            on_stored = self._announcing(on_stored)
        try:
            self._file.writer.insert(drafts, on_stored)
        except StoreError as error:
            asyncio.get_running_loop().call_soon(on_stored, (), (), error)

    def finish(self, sequence: GlobalSequence) -> None:
        """Mark a processing event done in some commit soon."""
        self._file.writer.finish(sequence)

    async def fail(self, sequence: GlobalSequence, retry_count: int, last_error: str) -> None:
        """Record one more failed attempt."""
        values = (retry_count, last_error, self._now(), sequence)
        await self._file.write(lambda connection: connection.execute(_QUERIES["fail_event"], values))

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:
        """Make it a dead letter."""
        now = self._now()
        values = (retry_count, last_error, now, now, sequence)
        await self._file.write(lambda connection: connection.execute(_QUERIES["bury_event"], values))

    async def release(self, sequences: Sequence[GlobalSequence]) -> None:
        """Put them back to pending, their attempts as they are."""
        values = (self._now(), sequences_to_json(sequences))
        await self._file.write(
            lambda connection: connection.execute(_QUERIES["release_events"], values), self._announce
        )

    def _announcing(self, on_stored: OnStored) -> OnStored:
        def announce_too(
            sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
        ) -> None:
            on_stored(sequences, versions, error)
            self._announce()

        return announce_too

    def _now(self) -> str:
        return moment_to_text(self._clock.now())


def may_be_pending(drafts: Sequence[Draft]) -> bool:
    """Whether the in-process handlers may have work with them once they are stored."""
    # any() would take three times as long, and each event is asked.
    for draft in drafts:  # noqa: SIM110
        if draft.status is None or draft.status is _PENDING:
            return True
    return False
