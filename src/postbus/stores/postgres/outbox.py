"""Events on their way through competing workers: rows that are claimed, and deleted once processed."""

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from postbus.errors import StoreError, StoreReadOnlyError, SubscriberFencedError
from postbus.events import (
    BatchOutcome,
    Burial,
    Claimed,
    Event,
    GlobalSequence,
    RetryOutcome,
    SubscriberId,
)
from postbus.ports import Clock
from postbus.stores.postgres.burials import as_text, bury, note_retry
from postbus.stores.postgres.claim_places import ClaimPlace
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.log_pages import decode_page
from postbus.stores.postgres.members import PgMembers
from postbus.stores.postgres.outbox_batches import OutboxBatch
from postbus.stores.postgres.page_size import PageSize
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.rows import columns_from_rows, dead_letter_from_row
from postbus.stores.postgres.wake_ups import WakeUps
from postbus.stores.wishes import answering

logger = logging.getLogger("postbus")

# How many columns of a claimed row are its event's.
_EVENT_COLUMNS = 8
_NO_ERRORS = "[]"
_LONGEST_NAME = 255
# The wish behind a row, which ended when the row was made: what is wished when the row goes came later.
_FED = datetime.fromtimestamp(0, UTC)

_encode = msgspec.json.Encoder().encode
_decode_errors = msgspec.json.Decoder(list[str]).decode


class PgOutbox:
    """Fulfils ports.Outbox. A worker is a member of its pool; one that is none any more has lost its rows."""

    def __init__(self, database: Database, members: PgMembers, wake_ups: WakeUps, clock: Clock) -> None:
        self._database, self._members = database, members
        self._wake_ups, self._work, self._clock = wake_ups, wake_ups.work, clock
        self._queries = _load_queries(database)
        self._checkpoint_queries = database.queries("checkpoints.sql")
        self._holder = f"{socket.gethostname()}/{os.getpid()}"[:_LONGEST_NAME]
        self._places: dict[SubscriberId, ClaimPlace] = {}
        self._size = PageSize()
        self._has_warned = False
        database.session.on_lost(self._places.clear)

    @property
    def most_transactions(self) -> int:
        """How many handlers of process() there can be at once in this instance; others wait for them."""
        return self._database.most_handlers

    async def join(self, pool: SubscriberId) -> None:
        """Be a worker of this pool, also after the session was lost and replaced. Idempotent."""
        if not self._members.has_joined(_group(pool)):
            await self._members.join(_group(pool))

    def leave(self, pool: SubscriberId) -> None:
        """Be none any more, unless there is still somebody here who watches the pool. Idempotent."""
        # Of two workers here, one of which was unsubscribed, the other one has rows under the same number.
        if not self._work.is_watched(pool):
            self._members.leave(_group(pool))

    def watch(self, pool: SubscriberId, on_work: Callable[[], None]) -> None:
        """Call this in the event loop when there may be rows for the pool."""
        self._work.watch(pool, on_work)

    def unwatch(self, pool: SubscriberId, on_work: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        self._work.unwatch(pool, on_work)

    async def claim(self, pool: SubscriberId, limit: int, *, with_suspect: bool) -> list[Claimed]:
        """Take rows that are due and that nobody has, oldest first; at most one suspect."""
        await self.join(pool)
        place = self._place(pool)
        look = place.begin()
        most, most_bytes = self._size.fit(limit)
        values = (pool, self._members.number, self._holder, most, most_bytes, int(with_suspect), *look.after)
        try:
            rows = await self._database.fetch(self._fit(self._queries["claim_rows"]), *values)
        except StoreError as error:
            self._size.note_failure(error)
            raise
        found = [(row["due_at"], row["number"]) for row in rows if not row["was_suspect"]]
        is_full = len(found) >= most or any(row["is_cut"] for row in rows[:1])
        place.end(look, found, is_full=is_full)
        if is_full:
            self._size.note_full()
            # There may be more than was asked for.
            self._work.wake(pool)
        return await self._claimed(rows)

    async def begin_attempt(self, claimed: Claimed) -> bool:
        """Count the attempt that begins, of a suspect; False: the row is another's."""
        values = (claimed.row_id, claimed.claim, claimed.attempt_count + 1)
        return await self._database.fetch_row(self._queries["begin_attempt"], *values) is not None

    async def finish(self, pool: SubscriberId, claimed: Sequence[Claimed], *, is_repeatable: bool) -> None:
        """Delete them, and resolve the dead letters that they were retries of."""
        plain = [each for each in claimed if each.dead_letter_id is None]
        if plain:
            await self._database.fetch_row(
                self._queries["finish_rows"], *_names(plain), "off" if is_repeatable else None
            )
        for each in claimed:
            if each.dead_letter_id is not None:
                await self._end_retry(pool, each, None)

    async def put_off(
        self, pool: SubscriberId, claimed: Claimed, errors: Sequence[str], delay: float
    ) -> None:
        """Keep the errors of all attempts so far, and make it due again after so many seconds."""
        words = _encode([as_text(error) for error in errors]).decode()
        await self._database.execute(
            self._queries["put_off_row"], claimed.row_id, claimed.claim, len(errors), words, delay
        )
        self._work.wake_later(pool, delay)

    async def bury(self, pool: SubscriberId, claimed: Claimed, errors: Sequence[str]) -> None:
        """Make it a dead letter and delete it, in one transaction; of a retry add its last error."""
        if claimed.dead_letter_id is not None:
            await self._end_retry(pool, claimed, errors[-1])
            return
        assert claimed.event is not None, "what is not in the log can't fail"
        burials = [Burial(claimed.event, list(errors))]
        async with self._database.transaction() as connection:
            if await connection.fetchval(self._queries["delete_row"], claimed.row_id, claimed.claim):
                await bury(connection, self._checkpoint_queries, pool, burials, self._clock.now())

    async def give_back(self, pool: SubscriberId, claimed: Sequence[Claimed]) -> None:
        """They are due at once, and no attempt is counted."""
        if claimed:
            counts = [each.attempt_count for each in _in_order(claimed)]
            await self._database.execute(self._queries["give_back_rows"], *_names(claimed), counts)
            self._start_over(pool)

    async def process(
        self, pool: SubscriberId, claimed: Claimed, handle: Callable[[Event, Any], Any], *, timeout: float
    ) -> BatchOutcome:
        """Call handle(event, connection) in the transaction in which the row is deleted."""
        assert claimed.event is not None, "there is nothing to handle"
        batch = OutboxBatch(
            database=self._database,
            queries=self._checkpoint_queries,
            row_queries=self._queries,
            subscriber_id=pool,
            claimed=claimed,
            events=[claimed.event],
            handle=handle,
            timeout=timeout,
            retried=claimed.dead_letter_id,
            mark=(self._members.key_of(_transactions(pool)), self._members.number or 0),
            now=self._clock.now(),
        )
        try:
            return await batch.run()
        except SubscriberFencedError:
            return BatchOutcome(0)

    async def renew(self, pool: SubscriberId, claimed: Sequence[Claimed]) -> None:
        """Begin their leases anew, under the number that this instance has now."""
        await self.join(pool)
        await self._database.execute(self._queries["renew_rows"], *_names(claimed), self._members.number)

    async def reap(self, pool: SubscriberId, lease: float) -> int:
        """Take rows from workers that are gone, or silent for *lease* seconds: suspects; how many."""
        key = self._members.key_of(_group(pool))
        await self._end_transactions(pool, key)
        rows = await self._database.fetch(self._queries["reap_rows"], pool, key, lease)
        if rows:
            self._start_over(pool)
        return len(rows)

    async def workers(self, pool: SubscriberId) -> tuple[int | None, list[int]]:
        """The number of this instance and those of all workers of the pool, sorted."""
        numbers = await self._members.list(_group(pool))
        return self._members.number, numbers

    async def oldest(self, pool: SubscriberId, after: GlobalSequence) -> GlobalSequence | None:
        """The lowest number after this one that has a row, retries of dead letters left out."""
        row = await self._database.fetch_row(self._queries["read_oldest"], pool, after)
        return None if row is None else row[0]

    async def has_retries(self, pool: SubscriberId) -> bool:
        """Whether there is a row for the retry of a dead letter."""
        row = await self._database.fetch_row(self._queries["has_retries"], pool)
        return row is not None and bool(row[0])

    async def has_room(self, pool: SubscriberId, most: int) -> bool:
        """Whether fewer than so many rows wait for a worker, as far as this instance knows."""
        row = await self._database.fetch_row(self._queries["count_due"], pool, *self._place(pool).last, most)
        return row is None or row[0] < most

    async def is_empty(self, pool: SubscriberId) -> bool:
        """Whether no row is left."""
        row = await self._database.fetch_row(self._queries["has_rows"], pool)
        return row is not None and not row[0]

    async def _claimed(self, rows: Sequence[asyncpg.Record]) -> list[Claimed]:
        found = [row for row in rows if row[0] is not None]
        events: dict[int, Event] = {}
        # A record is as good as a tuple, but for the columns that are not the event's.
        for event in await decode_page(columns_from_rows([row[:_EVENT_COLUMNS] for row in found])):
            assert event.global_sequence is not None
            events[event.global_sequence] = event
        letters = await self._letters([row["letter"] for row in rows if row["letter"] is not None])
        return [_claimed_from_row(row, events, letters) for row in rows]

    async def _letters(self, letter_ids: Sequence[str]) -> Mapping[str, Event]:
        """The copies of events that dead letters have: they outlive the events in the log."""
        if not letter_ids:
            return {}
        rows = await self._database.fetch(self._queries["read_letters"], letter_ids)
        return {row["id"]: dead_letter_from_row(row) for row in rows}

    async def _end_retry(self, pool: SubscriberId, claimed: Claimed, error: str | None) -> None:
        assert claimed.dead_letter_id is not None
        outcome = RetryOutcome(answering(claimed.dead_letter_id, _FED), error)
        is_wanted_again = False
        async with self._database.transaction() as connection:
            if await connection.fetchval(self._queries["delete_row"], claimed.row_id, claimed.claim):
                is_wanted_again = await note_retry(
                    connection, self._checkpoint_queries, pool, outcome, self._clock.now()
                )
        if is_wanted_again:
            # Its subscriber has passed it over for as long as the row was there.
            self._wake_ups.announce(self._wake_ups.known_head)

    async def _end_transactions(self, pool: SubscriberId, key: int) -> None:
        """A worker that stands still would hold up the others by what its handlers have locked."""
        mark = self._members.key_of(_transactions(pool))
        try:
            await self._database.fetch(self._queries["end_transactions"], mark, key)
        except StoreReadOnlyError as error:
            log = logger.debug if self._has_warned else logger.warning
            self._has_warned = True
            log("a transaction of a worker of %s that is gone can't be ended: %s", pool, error)

    def _place(self, pool: SubscriberId) -> ClaimPlace:
        place = self._places.get(pool)
        if place is None:
            place = self._places[pool] = ClaimPlace(lambda: self._work.wake(pool))
        return place

    def _start_over(self, pool: SubscriberId) -> None:
        """There are rows again where everybody has looked already."""
        if pool in self._places:
            self._places[pool].start_over()
        self._work.announce(pool)

    def _fit(self, query: str) -> str:
        """In other words whenever the log has doubled: the plan for an empty one would read all of it."""
        return f"{query} /* less than 2^{self._wake_ups.known_head.bit_length()} events */"


def _load_queries(database: Database) -> Mapping[str, str]:
    parts = {
        "event_columns": database.queries("log.sql")["event_columns"],
        "letter_columns": database.queries("dead_letters.sql")["letter_columns"],
    }
    return fill_parts(database.queries("outbox.sql"), **parts)


def _claimed_from_row(
    row: asyncpg.Record, events: Mapping[int, Event], letters: Mapping[str, Event]
) -> Claimed:
    letter, errors = row["letter"], row["row_errors"]
    return Claimed(
        row_id=row["row_id"],
        claim=row["row_claim"],
        event=events.get(row["number"]) if letter is None else letters.get(letter),
        sequence=row["number"],
        attempt_count=row["attempts"],
        errors=[] if errors == _NO_ERRORS else _read_errors(errors),
        is_suspect=row["was_suspect"],
        dead_letter_id=letter,
    )


def _read_errors(text: str) -> list[str]:
    try:
        return _decode_errors(text)
    except msgspec.MsgspecError:
        return [text]  # another program wrote it


def _names(claimed: Sequence[Claimed]) -> tuple[list[int], list[int]]:
    ordered = _in_order(claimed)
    return [each.row_id for each in ordered], [each.claim for each in ordered]


def _in_order(claimed: Sequence[Claimed]) -> list[Claimed]:
    return sorted(claimed, key=lambda each: each.row_id)


def _group(pool: SubscriberId) -> str:
    return f"workers of {pool}"


def _transactions(pool: SubscriberId) -> str:
    return f"transactions of {pool}"
