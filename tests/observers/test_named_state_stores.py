"""A state store that is named after a database takes a store of that kind only."""

from pathlib import Path
from typing import assert_type

import pytest

from postbus.errors import InvalidConfigError
from postbus.state_stores import InMemoryStateStore, SQLiteStateStore
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore
from tests.observers.steps import OrderView


async def test_states_in_a_file_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    """The file is opened on first use."""
    async with SQLiteStore(tmp_path / "events.db") as store:
        await SQLiteStateStore(store, "orders", OrderView).put("o-1", OrderView(3))
    async with SQLiteStore(tmp_path / "events.db") as store:
        state = await SQLiteStateStore(store, "orders", OrderView).get("o-1")

    assert_type(state, OrderView | None)
    assert state == OrderView(3)


async def test_states_in_memory_live_with_their_store() -> None:
    store = InMemoryStore()
    await InMemoryStateStore(store, "orders").put("o-1", {"total": 3})

    assert await InMemoryStateStore(store, "orders").get("o-1") == {"total": 3}
    assert await InMemoryStateStore(InMemoryStore(), "orders").get("o-1") is None


def test_a_store_of_another_kind_is_refused(tmp_path: Path) -> None:
    """The state would not be where its name says."""
    with pytest.raises(InvalidConfigError, match=r"expected a SQLiteStore, such as bus\.store"):
        SQLiteStateStore(InMemoryStore(), "orders")
    with pytest.raises(InvalidConfigError, match=r"expected a InMemoryStore, such as bus\.store"):
        InMemoryStateStore(SQLiteStore(tmp_path / "events.db"), "orders")
