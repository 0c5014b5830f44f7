"""A page of the log on SQLite: read at once where that can be done, row by row where it can't."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postbus import EventBus, NewEvent, SQLiteStore
from postbus.events import Event, GlobalSequence, LogPage, LogPosition
from postbus.stores.sqlite import log_pages

ROW = (
    "INSERT INTO events (id, type, payload, status, created_at, updated_at) "
    "VALUES (?, 'order.placed', ?, ?, ?, 'now')"
)
NOON = "2026-01-01T12:00:00.000000+00:00"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
        st.characters(codec="utf-8", exclude_characters="\0")
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\"\\\x1f,é", max_size=3), inner),
    max_leaves=8,
)  # fmt: skip
names = st.text("abcé\"',-[]{}", min_size=1, max_size=8)
new_events = st.builds(
    NewEvent,
    st.sampled_from(["order.placed", "order.shipped", "user-created"]),
    json_values,
    st.none() | st.dictionaries(names, names, max_size=2),
    stream_id=st.none() | names,
    actor_id=st.none() | names,
    correlation_id=st.none() | names,
    schema_version=st.none() | st.integers(1, 9),
)


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    async with EventBus(tmp_path / "events.db"):
        yield tmp_path / "events.db"


def insert(path: Path, *rows: tuple[str, str | bytes, str, str]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(ROW, rows)


async def read(path: Path, after: int = 0, limit: int = 100) -> LogPage:
    store = SQLiteStore(path)
    try:
        return await store.log.read(LogPosition(GlobalSequence(after)), limit, None)
    finally:
        await store.close()


@given(st.lists(new_events, min_size=1, max_size=12), st.integers(1, 12))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_a_page_read_at_once_is_the_same_as_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, new: list[NewEvent], limit: int
) -> None:
    """Whatever was published, both ways of reading it give the same events."""
    path = tmp_path_factory.mktemp("pages") / "events.db"
    async with EventBus(path) as bus:
        await bus.publish_many(new)
    with closing(sqlite3.connect(path)) as connection:
        part = log_pages._Slice(1, GlobalSequence(len(new)))
        at_once = log_pages._read_at_once(connection, part, limit)
        row_by_row = log_pages._read_rows(connection, part, limit)

    assert at_once.events == row_by_row.events
    assert len(at_once.events) == min(limit, len(new))


@pytest.mark.parametrize(
    ("event_id", "payload", "status", "created_at"),
    [
        pytest.param("a\x1fb", "{}", "done", NOON, id="separator"),
        pytest.param("a", "{}", "done", "2026-01-01T12:00:00", id="naive"),
        pytest.param("a", "{}", "done", "noon,+00:00", id="no-moment"),
        pytest.param("a", "{}", "lost", NOON, id="status"),
        pytest.param("a", "1,2", "done", NOON, id="two-values"),
        pytest.param("a", "[1", "done", NOON, id="begun"),
        pytest.param("a", b"\x00\xff", "done", NOON, id="blob"),
    ],
)
async def test_what_another_program_wrote_spoils_no_other_event(
    path: Path, event_id: str, payload: str | bytes, status: str, created_at: str
) -> None:
    """Each event is read for itself when one of the page is not as we write them."""
    strange = (event_id, payload, status, created_at)
    insert(path, ("before", '{"order":1}', "done", NOON), strange, ("after", '{"order":3}', "done", NOON))

    page = await read(path)

    assert [event.id for event in page.events] == ["before", event_id, "after"]
    assert [page.events[0].payload, page.events[2].payload] == [{"order": 1}, {"order": 3}]


async def test_a_hole_in_the_log_is_passed_at_once(path: Path) -> None:
    """However many events somebody deleted, the next page has those that follow."""
    insert(path, ("first", "1", "done", NOON), ("last", "2", "done", NOON))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE events SET global_sequence = 5000000 WHERE id = 'last'")
        connection.execute("UPDATE sqlite_sequence SET seq = 5000000 WHERE name = 'events'")

    page = await read(path, after=1)

    assert [event.id for event in page.events] == ["last"]
    assert page.up_to == 5_000_000


async def test_a_page_of_large_events_ends_before_it_fills_the_memory(path: Path) -> None:
    """Events of a megabyte come a few at a time, in order, without one missing."""
    insert(path, *((f"large-{number}", f'"{"x" * 1_000_000}"', "done", NOON) for number in range(12)))
    got = list[Event]()
    after, pages = 0, 0

    while (page := await read(path, after)).events:
        got += page.events
        after, pages = page.up_to, pages + 1

    assert [event.id for event in got] == [f"large-{number}" for number in range(12)]
    assert pages > 1
