"""Whoever shares a commit with a piece of work that fails gets its own answer."""

import asyncio
from pathlib import Path

import pytest

from postbus import EventBus, SQLiteStore, StoreError
from tests.delivery.steps import soon, statuses


async def test_work_that_fails_spoils_no_publish(database: Path) -> None:
    """The failing one is written alone, and fails alone."""
    store = SQLiteStore(database)
    async with EventBus(store) as bus:
        failing = store.write(lambda connection: connection.execute("SELECT * FROM nowhere"))
        answers = await soon(
            asyncio.gather(
                failing,
                *(bus.publish("order.placed", event_id=f"{n}") for n in range(5)),
                return_exceptions=True,
            )
        )

    assert isinstance(answers[0], StoreError)
    assert answers[1:] == ["0", "1", "2", "3", "4"]
    assert len(statuses(database)) == 5


async def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, lock and reader stay together when the program goes to another folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    bus = EventBus("events.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with bus:
        event_id = await bus.publish("order.placed")
        event = await bus.store.get(event_id)

    assert event.id == event_id
    assert not list((tmp_path / "elsewhere").iterdir())
