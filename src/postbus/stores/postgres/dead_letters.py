"""Dead letters of durable subscribers, in PostgreSQL, where no others exist."""

from datetime import UTC, datetime

from postbus.errors import EventNotFoundError, NotADeadLetterError, SubscriberFencedError
from postbus.events import Burial, DeadLetter, DeadLetterPage, Event, FencedOwner, Part, SubscriberId
from postbus.ports import Clock, WantedEvents
from postbus.stores.postgres.burials import bury
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.query_parts import fill_parts
from postbus.stores.postgres.rows import dead_letter_from_row, event_from_row
from postbus.stores.postgres.type_conditions import type_condition
from postbus.stores.postgres.wake_ups import WakeUps
from postbus.stores.wishes import as_wanted

# As many as read_late finds at a time.
_MOST_LATE = 100
_WHOLE = Part(0, 1)


class PgDeadLetters:
    """The DeadLetterStore port."""

    def __init__(self, database: Database, wake_ups: WakeUps, clock: Clock) -> None:
        self._database, self._wake_ups, self._clock = database, wake_ups, clock
        of_log = database.queries("log.sql")
        shared = {name: of_log[name] for name in ("event_columns", "part_hash")}
        blocks = {**database.queries("dead_letters.sql"), **shared}
        self._queries = fill_parts(blocks)
        self._read_page_of_all = fill_parts(blocks, and_of_subscriber="")["read_page"]
        self._burial_queries = database.queries("checkpoints.sql")

    async def page(self, limit: int, offset: int, subscriber_id: SubscriberId | None) -> DeadLetterPage:
        """The unresolved ones of all subscribers or of one, newest first."""
        if subscriber_id is None:
            rows = await self._database.fetch(self._read_page_of_all, limit, offset)
        else:
            rows = await self._database.fetch(self._queries["read_page"], limit, offset, subscriber_id)
        letters = [dead_letter_from_row(row) for row in rows if row["id"] is not None]
        return DeadLetterPage(letters, rows[0]["total"])

    async def get(self, dead_letter_id: str) -> DeadLetter:
        """One, resolved or not. EventNotFoundError, NotADeadLetterError (an event that is none)."""
        row = await self._database.fetch_row(self._queries["read_letter"], dead_letter_id)
        if row is None:
            raise await self._why_not(dead_letter_id)
        return dead_letter_from_row(row)

    async def revive(self, dead_letter_id: str) -> None:
        """Mark it for one more attempt by its subscriber; an event's id stands for all its dead letters."""
        values = (dead_letter_id, self._clock.now())
        if _count(await self._database.execute(self._queries["want_retry"], *values)) == 0:
            raise await self._why_not(dead_letter_id)
        self._tell()

    async def revive_all(self, event_type: str | None, subscriber_id: SubscriberId | None) -> int:
        """Revive every unresolved dead letter, or those of one type, of one subscriber; how many."""
        values = (self._clock.now(), event_type, subscriber_id)
        count = _count(await self._database.execute(self._queries["want_retries"], *values))
        if count:
            self._tell()
        return count

    async def resolve(self, dead_letter_id: str, by: str, notes: str | None) -> None:
        """Somebody has seen to it: it leaves the list and stays on record."""
        values = (dead_letter_id, self._clock.now(), by, notes)
        async with self._database.transaction() as connection:
            # First, as workers do who tell of their row and then of the letter: none waits for the other.
            await connection.execute(self._queries["withdraw_retries"], dead_letter_id)
            count = _count(await connection.execute(self._queries["resolve_letter"], *values))
        if count == 0:
            raise await self._why_not(dead_letter_id)

    async def purge(self, cutoff: datetime) -> int:
        """Delete dead letters with created_at <= cutoff, resolved ones too; how many."""
        return _count(await self._database.execute(self._queries["purge_letters"], cutoff.astimezone(UTC)))

    async def wanted_retries(
        self, subscriber_id: SubscriberId, limit: int, part: Part | None = None
    ) -> list[DeadLetter]:
        """Dead letters of this subscriber or of one part that are to have one more attempt, oldest first."""
        part = part or _WHOLE
        query = self._queries["read_wanted_retries"]
        rows = await self._database.fetch(query, subscriber_id, limit, part.index, part.count)
        return [as_wanted(dead_letter_from_row(row), row["retry_wanted_at"]) for row in rows]

    async def bury_late(
        self, subscriber_id: SubscriberId, wanted: WantedEvents | None, error: str, owner: FencedOwner
    ) -> list[Event]:
        """Make dead letters of the events that appeared at numbers which the subscriber had given up."""
        types = (None, None) if wanted is None else type_condition(wanted)
        part = _WHOLE if wanted is None or wanted.part is None else wanted.part
        place = (subscriber_id, *types, part.index, part.count)
        late: list[Event] = []
        # Mostly there is none, and nothing has to be locked to see that.
        while found := await self._database.fetch(self._queries["read_late"], *place):
            given_up = sorted({row["given_up_id"] for row in found})
            late += await self._bury_late(place, given_up, error, owner)
            if len(found) < _MOST_LATE:
                break
        return late

    async def _bury_late(
        self, place: tuple[object, ...], given_up: list[int], error: str, owner: FencedOwner
    ) -> list[Event]:
        async with self._database.transaction() as connection:
            await connection.execute(self._queries["wait_briefly"])
            if await connection.fetchval(self._queries["hold_ownership"], *owner) is None:
                raise SubscriberFencedError(*owner)
            await connection.fetch(self._queries["lock_given_up"], given_up)
            # Once more: another instance may have buried them before they were locked.
            found = await connection.fetch(self._queries["read_late"], *place)
            rows = [row for row in found if row["given_up_id"] in given_up]
            late = [event_from_row(row) for row in rows]
            burials = [Burial(event, [error]) for event in late]
            subscriber_id = SubscriberId(str(place[0]))
            await bury(connection, self._burial_queries, subscriber_id, burials, self._clock.now())
            numbers = [row["global_sequence"] for row in rows]
            await connection.execute(
                self._queries["note_late"], [row["given_up_id"] for row in rows], numbers
            )
        return late

    async def _why_not(self, dead_letter_id: str) -> EventNotFoundError | NotADeadLetterError:
        row = await self._database.fetch_row(self._queries["find_status"], dead_letter_id)
        status = None if row is None else row[0]
        if status is None:
            return EventNotFoundError(dead_letter_id)
        return NotADeadLetterError(dead_letter_id, status)

    def _tell(self) -> None:
        # The log has not grown; whoever hears of its head looks for wanted retries too.
        self._wake_ups.announce(self._wake_ups.known_head)


def _count(tag: str) -> int:
    """How many rows a command has changed, as its tag says: "UPDATE 3"."""
    return int(tag.rpartition(" ")[2])
