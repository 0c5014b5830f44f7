"""What a connection has to ask before its first answers: a takeover waits for it."""

from typing import Any

import asyncpg
import pytest

from postbus import Event
from postbus.pg import PgEventBus
from tests.stores.postgres_steps import eventually


async def test_no_new_connection_asks_how_a_type_is_read(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would for lists of numbers: in locks, checkpoints and pages they are text."""
    asked: list[Any] = []
    introspect = vars(asyncpg.Connection)["_introspect_types"]

    async def note(connection: Any, types: Any, timeout: float | None) -> Any:
        asked.append(types)
        return await introspect(connection, types, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", note)
    entered: list[str] = []

    async def enter(event: Event) -> None:
        entered.append(event.id)

    def instance() -> PgEventBus:
        bus = PgEventBus(postgres_dsn)
        bus.subscribe("order.placed", enter, id="mail")
        return bus

    async with instance() as active:
        await active.publish("order.placed")
        await active.publish("order.paid")
        await eventually(lambda: len(entered) == 1)
        async with instance() as standby:
            await eventually(lambda: standby.subscription("mail").state == "standby")
            await eventually(lambda: standby.store._database.session._is_proven)  # type: ignore[attr-defined]
            await active.shutdown()
            await standby.publish("order.placed")
            await eventually(lambda: len(entered) == 2)

    assert asked == []
