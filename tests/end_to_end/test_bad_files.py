"""A path that no bus can be started on: a clear error, and the file is left as it was."""

# ruff: noqa: ASYNC240 (a test may wait for its disk)
import hashlib
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postbus import (
    DLQInspector,
    Event,
    EventBus,
    NotADatabaseError,
    PostbusError,
    SchemaTooNewError,
    SQLiteStore,
    StoreError,
)
from tests.end_to_end.database import check_integrity, connect
from tests.end_to_end.processes import RemoteBus, RemoteError

Use = Callable[[Path], Awaitable[object]]


async def start(path: Path) -> None:
    bus = EventBus(path)
    bus.subscribe(lambda event: None)
    try:
        await bus.start()
    finally:
        await bus.shutdown()


async def publish(path: Path) -> None:
    bus = EventBus(path)
    bus.subscribe(lambda event: None)
    try:
        await bus.publish("order.placed")
    finally:
        await bus.shutdown()


async def inspect(path: Path) -> None:
    store = SQLiteStore(path)
    try:
        await DLQInspector(store).list()
    finally:
        await store.close()


@pytest.fixture(params=[start, publish, inspect])
def use(request: pytest.FixtureRequest) -> Use:
    """The ways in which a file is opened first."""
    return request.param  # type: ignore[no-any-return]


def folder_state(folder: Path) -> dict[str, str]:
    """Every file of a folder, and what is in it."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "a directory"
        for file in folder.iterdir()
    }


async def refusal(use: Use, path: Path) -> PostbusError:
    """The error of using the path, which must leave everything in its folder as it was."""
    before = folder_state(path.parent)
    with pytest.raises(PostbusError) as refused:
        await use(path)
    assert folder_state(path.parent) == before
    assert str(path) in str(refused.value)
    return refused.value


class TestFilesThatAreNotOurs:
    async def test_a_text_file(self, path: Path, use: Use) -> None:
        """Someone's notes are not overwritten."""
        path.write_text("Dear diary, this is no database. " * 100)

        error = await refusal(use, path)

        assert isinstance(error, NotADatabaseError)
        assert "is not a SQLite database; check the path" in str(error)

    async def test_a_short_text_file(self, path: Path, use: Use) -> None:
        """Shorter than the header of a database."""
        path.write_text("notes\n")

        assert isinstance(await refusal(use, path), NotADatabaseError)

    async def test_a_directory(self, path: Path, use: Use) -> None:
        """The message names a file that would do."""
        path.mkdir()

        error = await refusal(use, path)

        assert isinstance(error, NotADatabaseError)
        assert "is a directory; expected the path of a file" in str(error)

    async def test_a_path_in_a_missing_folder(self, tmp_path: Path, use: Use) -> None:
        """The folder is not made in passing: a mistyped path would be kept for ever."""
        path = tmp_path / "missing" / "events.db"
        with pytest.raises(StoreError, match="its folder does not exist; create the folder first"):
            await use(path)

        assert folder_state(tmp_path) == {}

    async def test_links_in_a_circle(self, tmp_path: Path, use: Use) -> None:
        """A link to itself, two to each other, and a folder that is such a link."""
        for link, target in (("self.db", "self.db"), ("one.db", "other.db"), ("other.db", "one.db")):
            (tmp_path / link).symlink_to(target)
        for path in (tmp_path / "self.db", tmp_path / "one.db", tmp_path / "one.db" / "events.db"):
            with pytest.raises(StoreError, match="can't be opened: Too many levels of symbolic links"):
                await use(path)

        assert sorted(file.name for file in tmp_path.iterdir()) == ["one.db", "other.db", "self.db"]

    async def test_a_name_that_is_too_long(self, tmp_path: Path, use: Use) -> None:
        """Of the file, and of a folder."""
        for path in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "events.db"):
            with pytest.raises(StoreError, match="can't be opened: File name too long"):
                await use(path)

        assert folder_state(tmp_path) == {}

    async def test_a_path_below_a_file(self, tmp_path: Path, use: Use) -> None:
        """A file where a folder is expected."""
        (tmp_path / "notes.txt").write_text("notes")
        with pytest.raises(StoreError, match="create the folder first"):
            await use(tmp_path / "notes.txt" / "events.db")

    @pytest.mark.parametrize("journal_mode", ["DELETE", "WAL"])
    async def test_the_database_of_another_program(self, path: Path, use: Use, journal_mode: str) -> None:
        """Its own table named events is neither changed nor added to."""
        with connect(path) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal_mode}")
            connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, title TEXT, starts_on TEXT)")
            connection.execute("INSERT INTO events (title, starts_on) VALUES ('party', '2026-01-01')")

        error = await refusal(use, path)

        assert isinstance(error, NotADatabaseError)
        assert "a table named events that is not ours (columns id, starts_on, title)" in str(error)
        assert "give postbus a file of its own" in str(error)

    async def test_a_damaged_database(self, path: Path, use: Use) -> None:
        """The message says what can be done about it."""
        await publish(path)
        content = bytearray(path.read_bytes())
        content[100:4096] = b"\xff" * (4096 - 100)
        path.write_bytes(content)

        error = await refusal(use, path)

        assert isinstance(error, StoreError)
        assert "restore it from a backup" in str(error)


class TestOtherSchemas:
    async def test_a_schema_of_a_newer_program(self, path: Path, use: Use) -> None:
        """It may mean something else by the same columns, so nothing is touched."""
        await publish(path)
        with connect(path) as connection:
            connection.execute("INSERT INTO postbus_schema (version, applied_at) VALUES (999, '2030-01-01')")

        error = await refusal(use, path)

        assert isinstance(error, SchemaTooNewError)
        assert (error.found, error.path) == (999, str(path))
        assert "upgrade postbus" in str(error)

    async def test_the_tables_of_the_specification_are_taken_over(self, path: Path) -> None:
        """Events of every status keep it, and get their numbers in the order of their creation."""
        rows = make_old_tables(path)
        delivered: list[tuple[str, object]] = []
        bus = EventBus(path)

        @bus.on("*")
        async def note(event: Event) -> None:
            delivered.append((event.id, event.payload))

        async with bus:
            await bus.idle()
            stored = [await bus.store.get(row["id"]) for row in rows]
            dead = await bus.dlq.list()
            new = await bus.store.get(await bus.publish("order.placed"))

        numbers = {event.id: event.global_sequence for event in stored}
        by_time = sorted(rows, key=lambda row: row["created_at"])
        assert [numbers[row["id"]] for row in by_time] == list(range(1, len(rows) + 1))
        assert delivered[:-1] == [
            (row["id"], {"order": row["number"]})
            for row in by_time
            if row["status"] in ("pending", "processing")
        ]
        assert [event.id for event in dead.events] == [
            row["id"] for row in reversed(by_time) if row["status"] == "dlq"
        ]
        assert {event.status for event in stored} == {"done", "dlq"}
        assert {event.errors[0] for event in dead.events} == {"Error: boom"}
        assert all(event.metadata == {"source": "old"} for event in stored)
        assert all(event.created_at.tzinfo is not None for event in stored)
        assert new.global_sequence == len(rows) + 1
        check_integrity(path)

    async def test_a_crash_while_taking_over_leaves_the_old_tables(self, path: Path) -> None:
        """It is one transaction: a row that can't be taken over leaves all as it was."""
        rows = make_old_tables(path)
        with connect(path) as connection:
            connection.execute("ALTER TABLE events RENAME COLUMN updated_at TO changed_at")

        await refusal(start, path)

        with connect(path) as connection:
            connection.execute("ALTER TABLE events RENAME COLUMN changed_at TO updated_at")
        async with EventBus(path) as bus:
            assert [(await bus.store.get(row["id"])).id for row in rows] == [row["id"] for row in rows]

    async def test_a_payload_that_is_not_json_becomes_a_dead_letter(self, path: Path) -> None:
        """Another program wrote it; the events before and after it are delivered."""
        delivered: list[str] = []
        bus = EventBus(path)

        @bus.on("*")
        async def note(event: Event) -> None:
            delivered.append(event.id)

        await start(path)
        with connect(path) as connection:
            for event_id, payload in (("before", "1"), ("bad", "{not json"), ("after", "2")):
                connection.execute(
                    "INSERT INTO events (id, type, payload, created_at, updated_at) "
                    "VALUES (?, 'order.placed', ?, '2026-01-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z')",
                    (event_id, payload),
                )
        async with bus:
            await bus.idle()
            dead = await bus.dlq.list()

        assert delivered == ["before", "after"]
        assert [event.id for event in dead.events] == ["bad"]
        assert dead.events[0].errors


def make_old_tables(path: Path) -> list[dict[str, str]]:
    """The schema of the specification, with twelve events, not in the order of their creation."""
    rows: list[dict[str, str]] = []
    with connect(path) as connection:
        connection.executescript(
            """
            CREATE TABLE events (
              id TEXT PRIMARY KEY, type TEXT NOT NULL, payload TEXT NOT NULL,
              status TEXT NOT NULL DEFAULT 'pending', retry_count INTEGER NOT NULL DEFAULT 0,
              last_error TEXT, metadata TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
            );
            CREATE INDEX idx_events_status ON events(status);
            CREATE INDEX idx_events_type ON events(type);
            CREATE TABLE subscriptions (
              id TEXT PRIMARY KEY, event_type TEXT NOT NULL, created_at TEXT NOT NULL
            );
            INSERT INTO subscriptions VALUES ('old', 'order.*', '2020-01-01T00:00:00.000Z');
            """
        )
        for number in range(12):
            status = ("pending", "processing", "done", "dlq")[number % 4]
            # 7 and 12 have no common divisor: every minute occurs once, and not in order.
            created_at = f"2020-01-01T00:{number * 7 % 12:02d}:00.000Z"
            row = {"id": f"old-{number}", "status": status, "created_at": created_at, "number": str(number)}
            rows.append(row)
            connection.execute(
                "INSERT INTO events VALUES (?, 'order.placed', json_object('order', ?), ?, ?, ?, ?, ?, ?)",
                (
                    row["id"],
                    row["number"],
                    status,
                    4 if status == "dlq" else 0,
                    '["Error: boom"]' if status == "dlq" else None,
                    '{"source":"old"}',
                    created_at,
                    created_at,
                ),
            )
    return rows


class TestFilesThatCannotBeWritten:
    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        """A folder that others may enter, which pytest's own is not."""
        folder = Path(tempfile.mkdtemp(prefix="postbus-"))
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)
        shutil.rmtree(folder)

    @staticmethod
    def refuse(path: Path, tmp_path: Path) -> RemoteError:
        """What a bus says to somebody who may not write the file."""
        with RemoteBus(path, tmp_path, handlers={"ok.*": "ok"}) as bus:
            if os.getuid() == 0:
                # Root may write whatever its permissions say.
                bus.ask("drop_privileges")
            with pytest.raises(RemoteError) as at_start:
                bus.ask("start")
            with pytest.raises(RemoteError) as at_publish:
                bus.ask("publish", type="ok.event")
        for refused in (at_start.value, at_publish.value):
            assert refused.name == "StoreReadOnlyError"
            assert str(path) in refused.message
            assert "can't be" in refused.message
        return at_start.value

    async def test_a_read_only_file(self, folder: Path, tmp_path: Path) -> None:
        """The file stays as it was."""
        path = folder / "events.db"
        await publish(path)
        path.chmod(0o444)
        before = path.read_bytes()
        self.refuse(path, tmp_path)

        assert path.read_bytes() == before

    async def test_a_read_only_file_and_a_bus_without_handlers(self, folder: Path, tmp_path: Path) -> None:
        """It writes nothing when it starts, and hears of it when it publishes."""
        path = folder / "events.db"
        await publish(path)
        path.chmod(0o444)
        with RemoteBus(path, tmp_path) as bus:
            if os.getuid() == 0:
                bus.ask("drop_privileges")
            with pytest.raises(RemoteError) as refused:
                bus.ask("publish", type="ok.event")

        assert refused.value.name == "StoreReadOnlyError"

    async def test_a_read_only_folder(self, folder: Path, tmp_path: Path) -> None:
        """SQLite keeps its log beside the file, so the file alone is not enough."""
        path = folder / "events.db"
        await publish(path)
        path.chmod(0o666)
        before = folder_state(folder)
        folder.chmod(0o555)
        error = self.refuse(path, tmp_path)

        assert "folder" in error.message
        assert folder_state(folder) == before

    async def test_a_new_file_in_a_read_only_folder(self, folder: Path, tmp_path: Path) -> None:
        """Nothing is made."""
        folder.chmod(0o555)
        self.refuse(folder / "events.db", tmp_path)

        assert folder_state(folder) == {}

    async def test_a_file_that_nobody_may_read(self, folder: Path, tmp_path: Path) -> None:
        """The same error, and not that it is no database."""
        path = folder / "events.db"
        await publish(path)
        path.chmod(0)
        self.refuse(path, tmp_path)

        assert stat.S_IMODE(path.stat().st_mode) == 0

    @pytest.mark.parametrize("mode", [0, 0o444, 0o666], ids=oct)
    async def test_a_folder_that_may_not_be_entered(self, folder: Path, tmp_path: Path, mode: int) -> None:
        """Whether the file is there can't even be asked."""
        closed = folder / "closed"
        closed.mkdir()
        path = closed / "events.db"
        await publish(path)
        closed.chmod(mode)
        try:
            self.refuse(path, tmp_path)
            self.refuse(closed / "new.db", tmp_path)
            self.refuse(closed / "deeper" / "events.db", tmp_path)
        finally:
            closed.chmod(0o777)

        assert not (closed / "new.db").exists()

    async def test_a_lock_file_of_somebody_else(self, folder: Path, tmp_path: Path) -> None:
        """A database that may be written, beside a lock file that may not."""
        path = folder / "events.db"
        await publish(path)
        path.chmod(0o666)
        Path(f"{path}-dispatch").chmod(0o444)
        error = self.refuse(path, tmp_path)

        assert "check the permissions" in error.message


async def test_a_file_that_vanishes_with_its_folder_is_no_crash(tmp_path: Path) -> None:
    """A bus whose folder was deleted still shuts down."""
    folder = tmp_path / "short-lived"
    folder.mkdir()
    bus = EventBus(folder / "events.db")
    await bus.publish("order.placed")
    shutil.rmtree(folder)

    await bus.shutdown()


def test_sqlite_here_is_new_enough() -> None:
    """RETURNING came with 3.35."""
    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection.execute("SELECT sqlite_version() >= '3.35'").fetchone() is not None
    assert sqlite3.sqlite_version_info >= (3, 35)
