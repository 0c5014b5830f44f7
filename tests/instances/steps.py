"""Instances of one application, in this process or each in a process of its own."""

import asyncio
import itertools
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from postbus import Event, PgEventBus, ReliableDeliveryConfig
from tests.end_to_end.history import History
from tests.end_to_end.processes import Child, RemoteBus, wait_until
from tests.gaps.steps import Seen, soon
from tests.patience import PATIENCE
from tests.postgres.proxy import Direction, Proxy

ID = "mail"
AT_WORK = ("catching_up", "live")
EFFECTS = "CREATE TABLE IF NOT EXISTS effects (event_id text, instance text)"


class Instance(RemoteBus):
    """One in a process of its own; its handlers tell the history "<subscriber>-by-<name>"."""

    def __init__(
        self, dsn: str, folder: Path, name: str, *, failover_timeout: float = 10.0, **subscribers: str
    ):
        config = {"failover_timeout": failover_timeout, "poll_interval": 0.1}
        options = json.dumps({"name": name, "config": config, "subscribers": subscribers})
        Child.__init__(self, "instance", dsn, folder / "history", options, folder=folder)
        self._answers, self._commands = {}, itertools.count(1)
        self.name = name

    def start(self, *states: str) -> None:
        """Start its bus, and wait until each of its subscribers is in one of the states."""
        self.ask("start")
        if states:
            self.wait_for_state(*states)

    def wait_for_state(self, *states: str, id: str = ID, timeout: float = PATIENCE) -> float:
        """Ask until its subscriber is in one of the states; how many seconds that took."""
        began_at = time.monotonic()
        wait_until(lambda: self.ask("state", id=id) in states, f"{id} is {' or '.join(states)}", timeout)
        return time.monotonic() - began_at

    def stand_still(self) -> None:
        """Until go_on()."""
        self.signal(signal.SIGSTOP)

    def stand_still_in_statement(self) -> None:
        """Until go_on(): its session has begun a statement, and the server waits for the rest."""
        self.begin("stand_still_in_statement")
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """After it stood still."""
        self.signal(signal.SIGCONT)

    def has_said(self, words: str) -> bool:
        """Whether it has logged this."""
        return any(words in message for message in self.ask("said"))


def handled(history: History, name: str, id: str = ID) -> list[str]:
    """What the subscriber's handler got through in this instance, in order."""
    return [event_id for what, event_id in history.lines() if what == f"{id}-by-{name}"]


def wait_until_handled(history: History, name: str, what: str, timeout: float = PATIENCE) -> float:
    """Wait until the handler of this instance has got through an event; how many seconds that took."""
    began_at = time.monotonic()
    wait_until(lambda: handled(history, name), what, timeout)
    return time.monotonic() - began_at


def typical(seconds: Sequence[float]) -> float:
    """The median: a machine with other things to do delays one and the other, but not half of them."""
    return statistics.median(seconds)


async def rows(dsn: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement, past postbus."""
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(query, *values)]
    finally:
        await connection.close()


def look(dsn: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    """As rows(), for a test that is no coroutine."""
    return asyncio.run(rows(dsn, query, *values))


def bus_with(dsn: str, *ids: str, **settings: Any) -> tuple[PgEventBus, Seen]:
    """A bus in this process that notes what its subscribers get."""
    options = {name: settings.pop(name) for name in ("schema",) if name in settings}
    settings.setdefault("poll_interval", 0.05)
    bus, seen = PgEventBus(dsn, config=ReliableDeliveryConfig(**settings), **options), Seen()
    for each in ids or (ID,):
        bus.subscribe("*", seen, id=each)
    return bus, seen


async def until_state(bus: PgEventBus, state: str, id: str = ID, within: float = PATIENCE) -> float:
    """Wait until the subscriber is in this state; how many seconds that took."""
    return await soon(lambda: bus.subscription(id).state == state, within)


@asynccontextmanager
async def outsider(dsn: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A session of another program."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


class ListeningProxy(Proxy):
    """Keeps what clients say to the server."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.said = b""

    async def _forward(self, message: bytes, writer: asyncio.StreamWriter, direction: Direction) -> None:
        if direction == "to_server":
            self.said += message
        await super()._forward(message, writer, direction)


def payloads(events: Sequence[Event]) -> list[Any]:
    """What they carry."""
    return [event.payload for event in events]
