"""The database is deleted or replaced under a running bus: it says so, and acknowledges nothing more."""

import asyncio
import logging
import shutil
import subprocess
import sys
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


def delete_all(path: Path) -> None:
    for each in (delete_database, delete_log, delete_index_of_log):
        each(path)


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def rename_database(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


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
    "spoil",
    [
        delete_database,
        delete_log,
        delete_index_of_log,
        delete_all,
        delete_folder,
        rename_database,
        replace_database,
    ],
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
    # Others tell that they can't go on.
    assert sum("nothing more is stored" in error for error in errors if not error.startswith("can't")) == 1


async def test_what_was_in_a_deleted_log_is_saved(path: Path) -> None:
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
        store._commit.look_after_file(lambda: True)

        assert await add(store, make_draft()) == [2]


async def test_a_log_beside_the_file_to_which_a_link_leads_is_watched_too(path: Path) -> None:
    """SQLite keeps it there."""
    link = path.parent.parent / "link.db"
    link.symlink_to(path)
    async with EventBus(link) as bus:
        await bus.publish("order.placed")
        delete_log(path)
        await publish_until_refused(bus)


async def test_a_folder_that_was_renamed_is_no_replaced_file(path: Path) -> None:
    """All is there, under another name; so it looks from within another root directory, too."""
    async with SQLiteStore(path) as store:
        await add(store, make_draft())
        path.parent.rename(path.parent.with_name("elsewhere"))
        assert store._commit is not None
        store._commit.look_after_file(lambda: True)

        assert await add(store, make_draft()) == [2]


async def test_what_others_have_stored_since_is_not_deleted(path: Path) -> None:
    """Another process has found no log and begun one, and ends first."""
    async with EventBus(path) as bus:
        await bus.publish("order.placed")
        delete_log(path)
        delete_index_of_log(path)
        await publish_until_refused(bus)
        published = await _in_another_process(path, "await bus.publish('order.paid')")
    stored = await _in_another_process(path, "[event.id for event in await bus.store.read_all(0, 9_999)]")

    assert published in stored


async def _in_another_process(path: Path, expression: str) -> str:
    program = "\n".join(
        (
            "import asyncio, sys",
            "from postbus import EventBus",
            "async def main():",
            "    async with EventBus(sys.argv[1]) as bus:",
            f"        print({expression})",
            "asyncio.run(main())",
        )
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdout=subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0
    return told.decode().strip()
