"""Rows of the outbox: fed with the checkpoint, claimed by one worker, changed only by who has the claim."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from postbus import PgEventStore, SubscriberFencedError
from postbus.events import (
    Checkpoint,
    Claimed,
    Event,
    GlobalSequence,
    LogPosition,
    OutboxEntry,
    Progress,
    SubscriberId,
)
from postbus.ids import new_event_id
from postbus.stores.postgres.claim_places import ClaimPlace
from tests.contracts.shared_database import SharedDatabase, shared_database
from tests.patience import PATIENCE
from tests.postgres.steps import ask
from tests.stores.postgres_steps import eventually, listening

__all__ = ["shared_database"]

POOL = SubscriberId("mail")


@pytest.fixture
async def dsn(shared_database: SharedDatabase) -> str:
    await shared_database.empty()
    return shared_database.dsn


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PgEventStore]:
    async with PgEventStore(dsn) as store:
        yield store


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[PgEventStore]:
    """Another instance."""
    async with PgEventStore(dsn) as store:
        yield store


async def append(store: PgEventStore, count: int) -> list[Event]:
    return await store.append("orders", [("order.placed", number) for number in range(count)])


def progress(claim: Checkpoint, events: list[Event], **more: Any) -> Progress:
    entries = [OutboxEntry(event.global_sequence or GlobalSequence(0), event.id) for event in events]
    last = events[-1].global_sequence or GlobalSequence(0)
    values: dict[str, Any] = {"outbox": entries, "position": last, "write_id": new_event_id(), **more}
    return Progress(subscriber_id=claim.subscriber_id, epoch=claim.epoch, server=claim.server, **values)


async def feed(store: PgEventStore, count: int, pool: SubscriberId = POOL) -> list[Event]:
    """So many events, in the log and in the outbox."""
    events = await append(store, count)
    claim = await store.checkpoints.claim(pool, LogPosition(GlobalSequence(0)))
    await store.checkpoints.save(progress(claim, events))
    return events


async def claim(store: PgEventStore, limit: int = 100, *, with_suspect: bool = True) -> list[Claimed]:
    return await store.outbox.claim(POOL, limit, with_suspect=with_suspect)


async def rows(dsn: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch("SELECT * FROM postbus.event_bus_outbox ORDER BY global_sequence")
    finally:
        await connection.close()


def numbers(claimed: list[Claimed]) -> list[int]:
    return [each.sequence for each in claimed]


class TestFeeding:
    async def test_rows_and_checkpoint_are_written_together(self, store: PgEventStore, dsn: str) -> None:
        """The outbox has exactly what the checkpoint has passed."""
        events = await feed(store, 3)

        found = await rows(dsn)
        assert [row["event_id"] for row in found] == [event.id for event in events]
        assert {(row["status"], row["locked_by"]) for row in found} == {("pending", None)}
        checkpoint = await store.checkpoints.load(POOL)
        assert checkpoint is not None
        assert checkpoint.position == 3

    async def test_a_feeder_that_was_replaced_feeds_nothing(self, store: PgEventStore, dsn: str) -> None:
        """Neither rows nor the checkpoint change."""
        events = await append(store, 2)
        old = await store.checkpoints.claim(POOL, LogPosition(GlobalSequence(0)))
        await store.checkpoints.claim(POOL, LogPosition(GlobalSequence(0)))
        with pytest.raises(SubscriberFencedError):
            await store.checkpoints.save(progress(old, events))

        assert await rows(dsn) == []

    async def test_a_write_whose_answer_got_lost_is_not_repeated(self, store: PgEventStore, dsn: str) -> None:
        """Not even after its rows were processed and are gone."""
        events = await append(store, 2)
        owner = await store.checkpoints.claim(POOL, LogPosition(GlobalSequence(0)))
        written = progress(owner, events)
        await store.checkpoints.save(written)
        await store.outbox.finish(POOL, await claim(store), is_repeatable=False)
        await store.checkpoints.save(written)

        assert await rows(dsn) == []

    async def test_workers_elsewhere_are_woken_and_standbys_are_not_made_to_ask(
        self, store: PgEventStore, other: PgEventStore
    ) -> None:
        """A word of its own kind: who waits for a lock hears nothing of it."""
        woken: list[str] = []
        asked: list[int] = []
        other.outbox.watch(POOL, lambda: woken.append(POOL))
        other.outbox.watch(SubscriberId("others"), lambda: woken.append("others"))
        other.log.watch(lambda: None)
        await eventually(lambda: other._database.session._has_listener)
        other.subscriber_locks.watch(None, lambda: asked.append(1), 10.0)
        woken.clear()
        asked.clear()
        await feed(store, 1)
        await eventually(lambda: POOL in woken)

        assert "others" not in woken
        assert asked == []

    async def test_feeds_that_follow_each_other_share_a_notification(
        self, store: PgEventStore, dsn: str
    ) -> None:
        """Each costs a statement of its own."""
        async with listening(dsn, store._database.channel) as listener:
            for _ in range(200):
                store._wake_ups.work.announce(POOL)
                await asyncio.sleep(0)
            store._wake_ups.work.announce(SubscriberId("end"))
            await eventually(lambda: any(words.endswith("end") for words in listener.heard))

        assert len(listener.heard) < 100


class TestClaiming:
    async def test_rows_are_claimed_oldest_first_with_their_events(
        self, store: PgEventStore, dsn: str
    ) -> None:
        """At most as many as were asked for."""
        events = await feed(store, 5)
        before = [row["claim"] for row in await rows(dsn)]
        first, second = await claim(store, 3), await claim(store, 3)

        assert numbers(first + second) == [1, 2, 3, 4, 5]
        assert [each.event for each in first + second] == events
        assert {row["status"] for row in await rows(dsn)} == {"processing"}
        assert [each.claim for each in first + second] == [number + 1 for number in before]

    async def test_two_workers_never_get_the_same_row(self, store: PgEventStore, other: PgEventStore) -> None:
        """However often both ask at the same moment."""
        await feed(store, 300)
        answers = await asyncio.gather(*[claim(each, 10) for each in [store, other] * 20])

        assert sorted(number for answer in answers for number in numbers(answer)) == list(range(1, 301))

    async def test_a_row_that_somebody_holds_is_passed_over(self, store: PgEventStore, dsn: str) -> None:
        """Nobody waits for it."""
        await feed(store, 3)
        holder = await asyncpg.connect(dsn)
        async with holder.transaction():
            await holder.execute("SELECT FROM postbus.event_bus_outbox WHERE global_sequence = 2 FOR UPDATE")
            found = await claim(store)
        await holder.close()

        assert numbers(found) == [1, 3]

    async def test_a_row_is_due_when_its_time_has_come(self, store: PgEventStore, dsn: str) -> None:
        """By the clock of the database."""
        await feed(store, 2)
        await ask(
            dsn,
            "UPDATE postbus.event_bus_outbox SET available_at = now() + '1h' WHERE global_sequence = 1",
        )

        assert numbers(await claim(store)) == [2]

    async def test_large_events_come_few_at_a_time(self, store: PgEventStore) -> None:
        """And the worker is told that there are more."""
        payload = "x" * 3_000_000
        events = await store.append("orders", [("order.placed", payload) for _ in range(5)])
        owner = await store.checkpoints.claim(POOL, LogPosition(GlobalSequence(0)))
        await store.checkpoints.save(progress(owner, events))
        woken: list[int] = []
        store.outbox.watch(POOL, lambda: woken.append(1))
        first = await claim(store)

        assert numbers(first) == [1, 2, 3]
        assert woken
        assert numbers(await claim(store)) == [4, 5]

    async def test_an_event_that_is_gone_from_the_log_leaves_a_row_without_one(
        self, store: PgEventStore, dsn: str
    ) -> None:
        """It is for the worker to do away with it."""
        await feed(store, 1)
        await ask(dsn, "DELETE FROM postbus.events")
        (claimed,) = await claim(store)

        assert claimed.event is None

    async def test_the_indexes_are_used_whatever_the_plan_was_made_for(
        self, store: PgEventStore, dsn: str
    ) -> None:
        """A plan that is kept from the time when the table was empty would read all of it."""
        connection = await asyncpg.connect(dsn)
        await connection.execute("VACUUM ANALYZE postbus.event_bus_outbox")
        for _ in range(10):
            await claim(store)
            await store.outbox.finish(POOL, [claimed_as(1, 1)], is_repeatable=True)
        await feed(store, 2000)
        scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'event_bus_outbox'"
        uses = "SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 'event_bus_outbox'"
        before = await settled(connection, scans, uses)
        for _ in range(20):
            await store.outbox.finish(POOL, await claim(store, 50), is_repeatable=True)
        after = await settled(connection, scans, uses)
        await connection.close()

        assert after[1] > before[1]
        assert after[0] == before[0]


def claimed_as(row_id: int, claim: int) -> Claimed:
    return Claimed(
        row_id=row_id,
        claim=claim,
        event=None,
        sequence=GlobalSequence(0),
        attempt_count=0,
        errors=[],
        is_suspect=False,
        dead_letter_id=None,
    )


async def settled(connection: "asyncpg.Connection[asyncpg.Record]", *queries: str) -> list[int]:
    """The answers, when they have not changed for a while: backends tell of what they did with a delay."""
    found: list[int] = []
    for _ in range(30):
        before, found = found, [await connection.fetchval(query) or 0 for query in queries]
        if before == found and any(found):
            await asyncio.sleep(1.1)
            if [await connection.fetchval(query) or 0 for query in queries] == found:
                return found
        await asyncio.sleep(0.1)
    return found


class TestFencing:
    """A row that another has claimed since is not touched by any of these."""

    @pytest.fixture
    async def lost(self, store: PgEventStore, other: PgEventStore, dsn: str) -> Claimed:
        """A claim of a worker whose row another one has by now."""
        await feed(store, 1)
        (lost,) = await claim(store)
        await ask(dsn, "UPDATE postbus.event_bus_outbox SET locked_at = now() - interval '1 minute'")
        assert await other.outbox.reap(POOL, 10.0) == 1
        (present,) = await claim(other)
        assert present.claim > lost.claim
        return lost

    @pytest.mark.parametrize("write", ["finish", "put_off", "bury", "give_back", "renew", "begin"])
    async def test_a_late_write_changes_nothing(
        self, store: PgEventStore, dsn: str, lost: Claimed, write: str
    ) -> None:
        """Whatever it says of the row."""
        before = await rows(dsn)
        outbox = store.outbox
        match write:
            case "finish":
                await outbox.finish(POOL, [lost], is_repeatable=False)
            case "put_off":
                await outbox.put_off(POOL, lost, ["no"], 1.0)
            case "bury":
                await outbox.bury(POOL, lost, ["no"])
            case "give_back":
                await outbox.give_back(POOL, [lost])
            case "renew":
                await outbox.renew(POOL, [lost])
            case "begin":
                assert not await outbox.begin_attempt(lost)

        assert await rows(dsn) == before
        assert await ask(dsn, "SELECT count(*) FROM postbus.event_bus_dlq") == 0

    async def test_a_late_handler_is_not_called(self, store: PgEventStore, lost: Claimed) -> None:
        """It could only do in vain what is undone."""
        called: list[Event] = []

        async def handle(event: Event, _: Any) -> None:
            called.append(event)

        outcome = await store.outbox.process(POOL, lost, handle, timeout=5.0)

        assert (outcome.done_count, outcome.error, called) == (0, None, [])


class TestReaping:
    async def test_rows_of_a_worker_that_is_gone_are_suspects(
        self, store: PgEventStore, dsn: str, other: PgEventStore
    ) -> None:
        """One at a time is claimed of them, and its attempt counts from its beginning on."""
        await feed(store, 3)
        await claim(store)
        await claim(other)
        await store.close()
        while not await other.outbox.reap(POOL, 10.0):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        found = await rows(dsn)
        first = await claim(other)
        none = await claim(other, with_suspect=False)
        has_begun = await other.outbox.begin_attempt(first[0])

        assert {(row["status"], row["is_suspect"], row["attempt_count"]) for row in found} == {
            ("pending", True, 0)
        }
        assert [(each.is_suspect, each.attempt_count) for each in first] == [(True, 0)]
        assert none == []
        assert has_begun
        assert [row["attempt_count"] for row in await rows(dsn)] == [1, 0, 0]

    async def test_rows_of_a_worker_that_lives_are_not(
        self, store: PgEventStore, other: PgEventStore
    ) -> None:
        """As long as it is a member and renews them."""
        await feed(store, 2)
        await claim(store)

        assert await other.outbox.reap(POOL, 10.0) == 0

    async def test_a_lease_that_is_renewed_goes_on(
        self, store: PgEventStore, other: PgEventStore, dsn: str
    ) -> None:
        """Only what nobody renews is taken."""
        await feed(store, 2)
        first, _ = await claim(store)
        await ask(dsn, "UPDATE postbus.event_bus_outbox SET locked_at = now() - interval '1 minute'")
        await store.outbox.renew(POOL, [first])

        assert await other.outbox.reap(POOL, 10.0) == 1
        assert numbers(await claim(other)) == [2]

    async def test_a_suspect_that_is_given_back_has_not_had_an_attempt(
        self, store: PgEventStore, dsn: str
    ) -> None:
        """But it is one still."""
        await feed(store, 1)
        await claim(store)
        await ask(dsn, "UPDATE postbus.event_bus_outbox SET locked_at = now() - interval '1 minute'")
        await store.outbox.reap(POOL, 10.0)
        (suspect,) = await claim(store)
        await store.outbox.begin_attempt(suspect)
        await store.outbox.give_back(POOL, [suspect])

        ((status, is_suspect, count),) = [
            (row["status"], row["is_suspect"], row["attempt_count"]) for row in await rows(dsn)
        ]
        assert (status, is_suspect, count) == ("pending", True, 0)

    async def test_a_row_that_another_program_marked_as_processing_is_taken(
        self, store: PgEventStore, dsn: str
    ) -> None:
        """Such as that of specification 0002, which knows no workers like ours."""
        await feed(store, 1)
        await ask(
            dsn,
            "UPDATE postbus.event_bus_outbox SET status = 'processing', locked_by = 'rust', locked_at = NULL",
        )

        assert await store.outbox.reap(POOL, 10.0) == 1


class TestFailures:
    async def test_errors_and_back_off_are_kept_in_the_row(self, store: PgEventStore, dsn: str) -> None:
        """Whoever claims it next gets the story so far."""
        await feed(store, 1)
        (claimed,) = await claim(store)
        await store.outbox.put_off(POOL, claimed, ["first", "half \ud800 and \0"], 0.0)
        (again,) = await claim(store)

        assert again.errors == ["first", "half \\ud800 and \\x00"]
        assert (again.attempt_count, again.claim) == (2, claimed.claim + 1)
        (row,) = await rows(dsn)
        assert json.loads(row["errors"]) == again.errors

    async def test_a_burial_takes_the_row_and_leaves_a_letter(self, store: PgEventStore, dsn: str) -> None:
        """In one transaction."""
        (event,) = await feed(store, 1)
        (claimed,) = await claim(store)
        await store.outbox.bury(POOL, claimed, ["first", "second"])

        assert await rows(dsn) == []
        (letter,) = (await store.dead_letters.page(10, 0, POOL)).events
        assert (letter.id, letter.errors) == (event.id, ["first", "second"])


class TestProgress:
    async def test_the_oldest_row_tells_how_far_the_pool_is(self, store: PgEventStore) -> None:
        """Whoever has it."""
        await feed(store, 3)
        first, _, _ = await claim(store)
        before = await store.outbox.oldest(POOL, GlobalSequence(0))
        await store.outbox.finish(POOL, [first], is_repeatable=False)

        assert before == 1
        assert await store.outbox.oldest(POOL, GlobalSequence(0)) == 2
        assert not await store.outbox.is_empty(POOL)
        assert await store.outbox.is_empty(SubscriberId("others"))

    async def test_there_is_room_for_as_many_as_are_said(self, store: PgEventStore) -> None:
        """Rows that wait for a worker count."""
        await feed(store, 10)

        assert await store.outbox.has_room(POOL, 11)
        assert not await store.outbox.has_room(POOL, 10)


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class TestPlaces:
    """Where to look: what is in front is passed over most of the time."""

    @staticmethod
    def at(number: int) -> tuple[datetime, int]:
        return MOMENT + timedelta(seconds=number), number

    async def test_it_goes_on_where_it_was(self) -> None:
        """After a look from the beginning."""
        place = ClaimPlace(lambda: None)
        look = place.begin()
        place.end(look, [self.at(1), self.at(2)], is_full=True)

        assert look.after < self.at(0)
        assert place.begin().after == self.at(2)

    async def test_it_begins_at_the_beginning_when_rows_are_put_back(self) -> None:
        """At once."""
        place = ClaimPlace(lambda: None)
        place.end(place.begin(), [self.at(1)], is_full=True)
        place.start_over()

        assert place.begin().after < self.at(0)

    async def test_it_begins_at_the_beginning_now_and_then(self) -> None:
        """Also if nobody says that there is anything, and a wake-up sees to it that somebody looks."""
        woken = asyncio.Event()
        place = ClaimPlace(woken.set)
        place.end(place.begin(), [self.at(1)], is_full=True)
        place.end(place.begin(), [], is_full=False)
        await asyncio.wait_for(woken.wait(), PATIENCE)

        assert place.begin().after < self.at(0)

    async def test_old_rows_are_taken_before_it_goes_on(self) -> None:
        """As long as there are more of them than a look takes."""
        place = ClaimPlace(lambda: None)
        place.end(place.begin(), [self.at(9)], is_full=True)
        place.start_over()
        place.end(place.begin(), [self.at(1), self.at(2)], is_full=True)
        again = place.begin()
        place.end(again, [self.at(3), self.at(10)], is_full=True)

        assert again.after < self.at(0)
        assert place.begin().after == self.at(10)
