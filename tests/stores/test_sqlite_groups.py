"""Jobs that share a commit: what is wrong with one of them is nobody else's business."""

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from postbus.errors import DuplicateEventIdError, StoreError, WrongExpectedVersionError
from postbus.events import Draft, Event, EventStatus, GlobalSequence, NewEvent, Progress
from postbus.stores.sqlite import SQLiteStore
from tests.contracts.steps import BEGINNING, MAIL, add, append, make_draft

# As many publishers as make a large group.
_MANY = 16


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(tmp_path / "events.db") as store:
        yield store


@asynccontextmanager
async def one_group(store: SQLiteStore) -> AsyncIterator[None]:
    """What is submitted in here waits for the writer together, so that it shares a commit."""
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(30)

    holding = asyncio.ensure_future(store.write(hold))
    await begun.wait()
    try:
        yield
        # Let every task come to where it waits.
        for _ in range(5):
            await asyncio.sleep(0)
    finally:
        gate.set()
        await holding


async def in_one_group(store: SQLiteStore, *calls: Awaitable[Any]) -> list[Any]:
    """The results or errors of calls that share a commit."""
    async with one_group(store):
        waiting = asyncio.gather(*calls, return_exceptions=True)
    return await waiting


async def _log(store: SQLiteStore) -> list[tuple[str, int | None, int | None]]:
    return [(e.id, e.global_sequence, e.stream_version) for e in await store.read_all(limit=10_000)]


def _in_stream(event_id: str, expected_version: int | None = None, **more: Any) -> Draft:
    return make_draft(id=event_id, stream_id="s", expected_version=expected_version, **more)


async def test_a_wrong_version_refuses_its_own_call_only(store: SQLiteStore) -> None:
    """The others of the group are stored with numbers and versions that know nothing of it."""
    stored = await in_one_group(
        store,
        append(store, _in_stream("a", 0), _in_stream("b")),
        append(store, _in_stream("late", 0), _in_stream("later")),
        append(store, _in_stream("c", 2)),
        add(store, make_draft(id="plain")),
    )

    assert isinstance(stored[1], WrongExpectedVersionError)
    assert (stored[1].expected, stored[1].actual) == (0, 2)
    assert await _log(store) == [("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("plain", 4, None)]


async def test_an_id_that_is_taken_refuses_its_own_call_only(store: SQLiteStore) -> None:
    """Also where SQLite finds it and the whole group has to be written again."""
    await append(store, make_draft(id="taken"))
    stored = await in_one_group(
        store,
        append(store, _in_stream("a")),
        append(store, _in_stream("x"), make_draft(id="taken")),
        append(store, _in_stream("b")),
    )

    assert isinstance(stored[1], DuplicateEventIdError)
    assert await _log(store) == [("taken", 1, None), ("a", 2, 1), ("b", 3, 2)]


async def test_a_save_that_is_refused_for_its_drafts_writes_nothing(store: SQLiteStore) -> None:
    """Neither its checkpoint nor its states, whatever else is in the commit."""
    owner = await store.checkpoints.claim(MAIL, BEGINNING)
    refused = Progress(
        subscriber_id=MAIL,
        epoch=owner.epoch,
        position=GlobalSequence(5),
        drafts=[make_draft(id="x"), _in_stream("y", 7)],
    )
    results = await in_one_group(store, store.checkpoints.save(refused), append(store, _in_stream("a")))

    assert isinstance(results[0], WrongExpectedVersionError)
    assert await _log(store) == [("a", 1, 1)]
    assert await store.checkpoints.load(MAIL) == owner


async def test_a_given_id_is_stored_once_by_a_group_that_has_it_twice(store: SQLiteStore) -> None:
    """And takes one number and one version."""
    stored = await in_one_group(
        store,
        append(store, _in_stream("once", is_idempotent=True)),
        append(store, _in_stream("once", is_idempotent=True), _in_stream("b")),
    )

    assert await _log(store) == [("once", 1, 1), ("b", 2, 2)]
    assert [[event.global_sequence for event in events] for events in stored] == [[1], [1, 2]]


@pytest.mark.parametrize("count", [1, 3, 4, 9, 10, 11, 99, 499, 500, 501, 600, 1001])
@pytest.mark.parametrize("stream_id", [None, "s"])
async def test_a_batch_of_any_size_is_stored_in_order(
    store: SQLiteStore, count: int, stream_id: str | None
) -> None:
    """Whichever statement it is written with."""
    await append(store, make_draft(id="before", stream_id=stream_id))
    drafts = [
        make_draft("order.placed", {"n": n}, id=f"event-{n}", stream_id=stream_id, metadata={"n": str(n)})
        for n in range(count)
    ]
    numbers = await add(store, *drafts)

    assert numbers == list(range(2, count + 2))
    events = await store.read_all(after=1, limit=10_000)
    assert [event.global_sequence for event in events] == numbers
    assert [event.payload for event in events] == [{"n": n} for n in range(count)]
    assert [event.metadata for event in events] == [{"n": str(n)} for n in range(count)]
    expected = [None] * count if stream_id is None else numbers
    assert [event.stream_version for event in events] == expected


@pytest.mark.parametrize("count", [3, 4, 10, 11, 100, 101, 1000, 1001])
async def test_a_group_of_any_size_is_stored_in_order(store: SQLiteStore, count: int) -> None:
    """However many publishers share a commit."""
    drafts = [make_draft("order.placed", {"n": n}, id=f"event-{n}") for n in range(count)]
    numbers = await in_one_group(store, *(add(store, draft) for draft in drafts))

    assert numbers == [[n + 1] for n in range(count)]
    events = await store.read_all(limit=10_000)
    assert [(event.global_sequence, event.payload["n"]) for event in events] == [
        (n + 1, n) for n in range(count)
    ]


@pytest.mark.parametrize("count", [1, 4, 10, 25])
async def test_a_group_goes_on_after_the_numbers_of_another_process(
    store: SQLiteStore, count: int, tmp_path: Path
) -> None:
    """It is written with the numbers it was given, or not at all; and so is what it marks as done."""
    first = await add(store, *[make_draft(id=f"first-{n}") for n in range(count)])
    async with SQLiteStore(tmp_path / "events.db") as other:
        await append(other, make_draft(id="other"))
        for number in first:
            store.queue.finish(GlobalSequence(number or 0))
        later = await add(store, *[make_draft(id=f"later-{n}") for n in range(count)])

        assert later == [number + count + 1 for number in range(1, count + 1)]
        await store.writer.flush()
        statuses = [event.status for event in await other.read_all(limit=100)]
        assert statuses == ["done"] * count + ["done"] + ["processing"] * count


@pytest.mark.parametrize("finished", [(1, 2, 3), (3, 1, 2), (1, 3), (1, 3, 3), (2,), (1, 2, 4, 5), (5, 1)])
async def test_only_what_was_finished_is_marked_done(store: SQLiteStore, finished: tuple[int, ...]) -> None:
    """Also where numbers are missing among them, or one comes twice."""
    await add(store, *[make_draft(id=f"event-{n}") for n in range(1, 6)])
    for number in finished:
        store.queue.finish(GlobalSequence(number))

    statuses = [event.status for event in await store.read_all()]
    assert statuses == ["done" if number in finished else "processing" for number in range(1, 6)]


async def test_finished_events_are_marked_done_while_publishers_keep_the_writer_busy(
    store: SQLiteStore, tmp_path: Path
) -> None:
    """They wait for a commit of their own, but not until nobody publishes any more."""
    (number,) = await add(store, make_draft(id="first"))
    store.queue.finish(GlobalSequence(number or 0))
    is_done, ended = False, asyncio.Event()

    def publish_again(*_: object) -> None:
        if is_done:
            ended.set()
        else:
            # At once, so that there is no moment at which nothing is to be written.
            store.queue.add((make_draft(),), publish_again)

    publish_again()
    async with SQLiteStore(tmp_path / "events.db") as other, asyncio.timeout(30):
        while not is_done:
            is_done = (await other.get("first")).status is EventStatus.DONE
        await ended.wait()


async def _add_with_finished(store: SQLiteStore, *finished: int, first_id: str = "new-0") -> list[Any]:
    """As many calls as make a large group, while these numbers wait to be marked done; what each got."""
    async with one_group(store):
        calls = [add(store, make_draft(id=first_id))]
        calls += [add(store, make_draft(id=f"new-{n}")) for n in range(1, _MANY)]
        waiting = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)
        # Neither before, when the call that holds the writer would take them along, nor by a later flush.
        store.writer._finished.extend(GlobalSequence(number) for number in finished)
    return await waiting


async def _statuses(store: SQLiteStore) -> list[str]:
    return [event.status.value for event in await store.read_all(limit=1_000)]


async def test_a_large_group_marks_what_was_finished_in_its_own_statement(
    store: SQLiteStore, tmp_path: Path
) -> None:
    """In the same commit: others see both or neither. What is back in pending stays there."""
    await add(store, *[make_draft(id=f"event-{n}") for n in range(5)])
    await store.queue.release([GlobalSequence(3)])
    statements: list[str] = []
    await store.write(lambda connection: connection.set_trace_callback(statements.append))
    numbers = await _add_with_finished(store, 2, 4, 3)
    # Told of once for itself, and once for each call of a trigger.
    written = {line for line in statements if line.startswith(("INSERT", "UPDATE"))}

    assert numbers == [[n] for n in range(6, 6 + _MANY)]
    assert len(written) == 1
    async with SQLiteStore(tmp_path / "events.db") as other:
        expected = ["processing", "done", "pending", "done", "processing", *["processing"] * _MANY]
        assert await _statuses(other) == expected
    assert not store.writer._finished


async def test_what_is_no_range_is_marked_after_a_large_group(store: SQLiteStore) -> None:
    """Nothing between the finished is marked."""
    await add(store, *[make_draft(id=f"event-{n}") for n in range(5)])
    await _add_with_finished(store, 1, 3, 4)
    await store.writer.flush()

    assert await _statuses(store) == ["done", "processing", "done", "done", *["processing"] * (_MANY + 1)]


async def test_more_than_a_large_group_could_bear_is_marked_after_it(store: SQLiteStore) -> None:
    """Its publishers do not wait for it."""
    count = 2 * _MANY + 1
    await add(store, *[make_draft(id=f"event-{n}") for n in range(count)])
    statements: list[str] = []
    await store.write(lambda connection: connection.set_trace_callback(statements.append))
    await _add_with_finished(store, *range(1, count + 1))
    await store.writer.flush()

    assert [line for line in statements if line.startswith("UPDATE events SET status = 'done'")]
    assert await _statuses(store) == ["done"] * count + ["processing"] * _MANY


async def test_nobody_elses_trigger_is_called_for_what_was_finished(store: SQLiteStore) -> None:
    """An audit of all that is inserted, say: it has every event once."""
    await add(store, *[make_draft(id=f"event-{n}") for n in range(3)])
    for statement in (
        "CREATE TABLE audit (id TEXT)",
        "CREATE TRIGGER audited BEFORE INSERT ON EVENTS BEGIN INSERT INTO audit VALUES (new.id); END",
    ):
        await store.write(lambda connection, statement=statement: connection.execute(statement))  # type: ignore[misc]
    await _add_with_finished(store, 1, 2, 3)
    await store.writer.flush()
    audited = await store.write(lambda connection: connection.execute("SELECT id FROM audit").fetchall())

    assert [row[0] for row in audited] == [f"new-{n}" for n in range(_MANY)]
    assert await _statuses(store) == ["done"] * 3 + ["processing"] * _MANY


@pytest.mark.parametrize(
    ("statement", "is_in_one"),
    [
        ("ALTER TABLE events ADD COLUMN number AS (json_extract(payload, '$.order'))", True),
        ("CREATE INDEX numbers ON events (json_extract(payload, '$.order'))", True),
        ("ALTER TABLE events ADD COLUMN kind TEXT AS (type) CHECK (kind <> '')", False),
    ],
)
async def test_what_somebody_has_made_of_the_columns_spoils_no_large_group(
    store: SQLiteStore, statement: str, is_in_one: bool
) -> None:
    """What is finished looks like new events, which it is not."""
    await add(store, *[make_draft(id=f"event-{n}") for n in range(3)])
    await store.write(lambda connection: connection.execute(statement))
    statements: list[str] = []
    await store.write(lambda connection: connection.set_trace_callback(statements.append))
    await _add_with_finished(store, 1, 2, 3)
    await store.writer.flush()
    stored = {line for line in statements if line.startswith("INSERT INTO events")}

    assert await _statuses(store) == ["done"] * 3 + ["processing"] * _MANY
    assert len(stored) == (1 if is_in_one else 2)


async def test_a_large_group_goes_on_after_the_numbers_of_another_process(
    store: SQLiteStore, tmp_path: Path
) -> None:
    """And what was finished is marked all the same, however much it is."""
    assert store._commit is not None
    # Not by a statement of their own.
    store._commit.finished_at = math.inf
    await add(store, *[make_draft(id=f"event-{n}") for n in range(_MANY)])
    numbers: list[int | None] = []
    store.writer._finished.extend(map(GlobalSequence, range(1, _MANY + 1)))
    # At once, before the writer looks what others have written.
    with closing(sqlite3.connect(tmp_path / "events.db", isolation_level=None)) as other:
        other.execute(
            "INSERT INTO events (id, type, payload, status, created_at, updated_at) "
            "SELECT 'other', type, payload, 'done', created_at, updated_at FROM events LIMIT 1"
        )
    for _ in range(_MANY):
        store.queue.add((make_draft(),), lambda sequences, *_: numbers.extend(sequences))
    async with asyncio.timeout(30):
        while len(numbers) < _MANY:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await store.writer.flush()

    assert numbers == [n + _MANY + 2 for n in range(_MANY)]
    assert await _statuses(store) == [*["done"] * (_MANY + 1), *["processing"] * _MANY]


async def test_what_was_finished_outlives_a_large_group_that_is_refused(store: SQLiteStore) -> None:
    """One of its ids is taken: the others are stored, and no mark is lost."""
    await add(store, *[make_draft(id=f"event-{n}") for n in range(3)])
    numbers = await _add_with_finished(store, 1, 2, first_id="event-2")
    await store.writer.flush()

    assert isinstance(numbers[0], DuplicateEventIdError)
    assert numbers[1:] == [[n] for n in range(4, 3 + _MANY)]
    assert await _statuses(store) == ["done", "done", *["processing"] * _MANY]


async def test_a_large_group_overwrites_nothing_where_numbers_were_set_back(tmp_path: Path) -> None:
    """By somebody who has restored SQLite's own table: it is refused, as a small one is."""
    async with SQLiteStore(tmp_path / "events.db") as store:
        await add(store, *[make_draft(id=f"event-{n}") for n in range(40)])
        sql = "UPDATE sqlite_sequence SET seq = 10 WHERE name = 'events'"
        await store.write(lambda connection: connection.execute(sql))
    async with SQLiteStore(tmp_path / "events.db") as store:
        refused = await _add_with_finished(store, 1, 2)
        await store.writer.flush()

        assert all(isinstance(error, StoreError) for error in refused)
        sql = "SELECT id, status FROM events ORDER BY global_sequence"
        rows = await store.write(lambda connection: connection.execute(sql).fetchall())
    assert rows == [(f"event-{n}", "done" if n < 2 else "processing") for n in range(40)]


async def test_a_commit_that_fails_has_given_out_no_number(store: SQLiteStore, tmp_path: Path) -> None:
    """Whatever is committed after it: a subscriber that begins now would miss what comes under it."""
    for statement in (
        "CREATE TABLE parents (id INTEGER PRIMARY KEY)",
        "CREATE TABLE children (parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TRIGGER spoil_commit AFTER INSERT ON events WHEN new.type = 'spoiled' "
        "BEGIN INSERT INTO children VALUES (1); END",
    ):
        await store.write(lambda connection, statement=statement: connection.execute(statement))  # type: ignore[misc]
    assert store._commit is not None
    store._commit.connection.execute("PRAGMA foreign_keys = ON")
    (number,) = await add(store, make_draft(id="first"))
    while time.monotonic() - store._commit.finished_at < 0.02:  # noqa: ASYNC110
        await asyncio.sleep(0)
    # So that it is marked right after what comes next, and alone.
    store.queue.finish(GlobalSequence(number or 0))
    with pytest.raises(StoreError):
        await add(store, make_draft("spoiled", stream_id="s"))
    async with SQLiteStore(tmp_path / "events.db") as other, asyncio.timeout(30):
        while (await other.get("first")).status is not EventStatus.DONE:
            pass

    assert (store.known_head, await store.head()) == (1, 1)


async def test_an_event_that_a_trigger_ignores_is_refused(store: SQLiteStore) -> None:
    """Somebody's own trigger on our table: nobody is told that an event was stored which was not."""
    await store.write(
        lambda connection: connection.execute(
            "CREATE TRIGGER ignore_it BEFORE INSERT ON events WHEN new.type = 'ignored' "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
    )
    with pytest.raises(StoreError, match="nothing was stored"):
        await add(store, make_draft("ignored"))

    assert await store.head() == 0


async def test_nothing_is_stored_of_nothing(store: SQLiteStore) -> None:
    """An empty call shares a commit like any other."""
    assert await in_one_group(store, add(store), add(store, make_draft())) == [[], [1]]


async def test_payloads_that_do_not_fit_into_one_statement_are_stored_all_the_same(
    store: SQLiteStore,
) -> None:
    """Three of seven megabytes, in one call."""
    events = await append(store, *[_in_stream(str(n), payload="x" * 7_000_000) for n in range(3)])

    assert [event.stream_version for event in events] == [1, 2, 3]
    assert [len(event.payload) for event in await store.read_stream("s")] == [7_000_000] * 3


async def test_what_a_draft_tells_about_itself_is_stored(store: SQLiteStore) -> None:
    """All the columns that most events leave empty."""
    new = NewEvent(
        "order.placed", {"n": 1}, {"k": "v"}, actor_id="me", correlation_id="c", causation_id="a",
        schema_version=3,
    )  # fmt: skip
    (told,) = await store.append("s", [new])
    stored = await store.get(told.id)

    assert told == stored
    assert isinstance(stored, Event)
    assert (stored.actor_id, stored.correlation_id, stored.causation_id, stored.schema_version) == (
        "me", "c", "a", 3,
    )  # fmt: skip


async def test_a_store_on_the_same_file_is_woken_and_knows_the_head(
    tmp_path: Path, store: SQLiteStore
) -> None:
    """Whoever has written: its connection is another one, as another process's would be."""
    async with SQLiteStore(tmp_path / "events.db") as other:
        woken = asyncio.Event()
        store.log.watch(woken.set)
        await append(other, make_draft(), make_draft())
        await asyncio.wait_for(woken.wait(), 30)

        assert store.log.known_head == 2
        assert (await append(store, make_draft()))[0].global_sequence == 3


async def test_only_what_may_be_repeated_does_not_wait_for_the_disk(store: SQLiteStore) -> None:
    """A batched checkpoint that a power cut takes away means redelivery; everything else is on disk."""
    levels: list[int] = []

    def note_level(connection: sqlite3.Connection) -> None:
        levels.append(connection.execute("PRAGMA synchronous").fetchone()[0])

    await store.write(note_level, waits_for_disk=False)
    await store.write(note_level)
    together = [store.write(note_level, waits_for_disk=False), store.write(note_level)]
    await asyncio.gather(*together)

    normal, full = 1, 2
    assert levels == [normal, full, full, full]


async def test_new_events_wait_for_the_disk_and_marking_them_done_between_them_does_not(
    store: SQLiteStore,
) -> None:
    """A mark that a power cut takes away means redelivery, and the next event takes it to the disk."""
    statements: list[str] = []
    await store.write(lambda connection: connection.set_trace_callback(statements.append))
    async with asyncio.timeout(30):
        while _levels(statements, "UPDATE events SET status = 'done'").count(1) < 2:
            (number,) = await add(store, make_draft())
            store.queue.finish(GlobalSequence(number or 0))
        await add(store, make_draft())

    assert set(_levels(statements, "INSERT INTO events")) == {2}


def _levels(statements: Sequence[str], beginning: str) -> list[int]:
    """The setting of synchronous under which each statement that begins like this was run."""
    level, found = 2, list[int]()
    for statement in list(statements):
        if statement.startswith("PRAGMA synchronous = "):
            level = int(statement[-1])
        elif statement.startswith(beginning):
            found.append(level)
    return found
