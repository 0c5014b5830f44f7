"""The database is deleted or replaced under a running bus: it says so, and acknowledges nothing more."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from postbus import Event, EventBus, FileReplacedError, SQLiteStore
from tests.contracts.steps import add, make_draft


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def delete_database(path: Path) -> None:
    path.unlink()


def delete_log(path: Path) -> None:
    _log_of(path).unlink()


def delete_index_of_log(path: Path) -> None:
    path.with_name(f"{path.name}-shm").unlink()


def rename_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace_database(path: Path) -> None:
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


async def publish_until_refused(bus: EventBus) -> list[str]:
    """The ids that were acknowledged."""
    acknowledged: list[str] = []
    async with asyncio.timeout(30):
        while True:
            try:
                acknowledged.append(await bus.publish("order.placed"))
            except FileReplacedError:
                return acknowledged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "events.db"


@pytest.mark.parametrize(
    "spoil", [delete_database, delete_log, delete_index_of_log, rename_folder, replace_database]
)
async def test_a_bus_says_so_and_stores_nothing_more(
    path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """At once, and not when it is too late; every way to store is refused, and a shutdown ends."""
    async with asyncio.timeout(30):
        async with EventBus(path) as bus:
            bus.subscribe(lambda event: None)
            await bus.publish("order.placed")
            spoil(path)
            await publish_until_refused(bus)
            with pytest.raises(FileReplacedError, match="deleted or replaced"):
                await bus.publish_many([("order.placed", 1)] * 2)
            with pytest.raises(FileReplacedError):
                await bus.store.append("stream", [("order.placed", 1)])

    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert sum("nothing more is stored" in message for message in errors) == 1


async def test_what_was_in_a_deleted_log_is_saved_by_a_shutdown(path: Path) -> None:
    """SQLite still has the log open, and copies it into the database when it is closed."""
    seen: list[str] = []

    async def note(event: Event) -> None:
        seen.append(event.id)

    async with EventBus(path) as bus:
        bus.subscribe(note)
        delete_log(path)
        acknowledged = await publish_until_refused(bus)
    async with EventBus(path) as bus:
        stored = [event.id for event in await bus.store.read_all(limit=100_000)]

    assert acknowledged
    assert stored == acknowledged
    assert seen == acknowledged


async def test_a_connection_that_a_handler_has_closed_is_no_replaced_file(path: Path) -> None:
    """SQLite has deleted the log with it, and makes another with the next one."""
    async with SQLiteStore(path) as store:
        await add(store, make_draft())
        assert store._commit is not None
        store._commit.connection.close()
        assert not _log_of(path).exists()
        store._commit.look_for_files()

        assert await add(store, make_draft()) == [2]
