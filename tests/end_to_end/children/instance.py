"""An instance of an application on PostgreSQL that does what its parent says, as remote_bus does.

Arguments: the DSN, the history, options as JSON: "name" of this process in the history, "config" for
ReliableDeliveryConfig, "subscribers" as id → kind ("ok", "slow", "failing", "transactional", "statement" or
"saga").
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postbus import Event, PgEventBus, PgStateStore, ReliableDeliveryConfig, Saga, SagaContext
from tests.end_to_end.children.remote_bus import serve
from tests.end_to_end.history import ACKNOWLEDGED, History

BEGAN = "began"
_INSERT_EFFECT = "INSERT INTO effects (event_id, instance) VALUES ($1, $2)"


class Log(logging.Handler):
    """What the bus has said."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Counting(Saga[int]):
    """Counts the orders and answers each, when it is let."""

    patterns = ("order.*",)

    def __init__(self, subscriber_id: str, states: PgStateStore[int], wait: Callable[[Event], Any]) -> None:
        super().__init__(states)
        self.subscriber_id, self._wait = subscriber_id, wait

    def saga_id(self, event: Event) -> str:
        """All are one."""
        return "orders"

    async def handle(self, state: int | None, event: Event, ctx: SagaContext) -> int:
        """One more."""
        await self._wait(event)
        ctx.publish("answer.given", event.id)
        return (state or 0) + 1


class InstanceRemote:
    """One method for each command."""

    def __init__(self, dsn: str, history: History, options: dict[str, Any]) -> None:
        self._dsn, self._history, self._options = dsn, history, options
        self._released = asyncio.Event()
        self._log = Log()
        logging.getLogger("postbus").addHandler(self._log)

    async def start(self) -> None:
        """A new bus: one that was shut down does not come back."""
        # An attempt that its process did not survive counts, too.
        config = ReliableDeliveryConfig(max_retries=20, **self._options.get("config", {}))
        self._bus = PgEventBus(self._dsn, config=config)
        for subscriber_id, kind in self._options["subscribers"].items():
            self._subscribe(subscriber_id, kind)
        await self._bus.start()

    async def shutdown(self) -> None:
        await self._bus.shutdown()

    async def publish(self, count: int = 1) -> list[str]:
        event_ids = await self._bus.publish_many([("order.placed", number) for number in range(count)])
        self._history.note(ACKNOWLEDGED, *event_ids)
        return event_ids

    async def state(self, id: str) -> str:
        return self._bus.subscription(id).state

    async def caught_up(self, id: str) -> None:
        await self._bus.subscription(id).caught_up(timeout=20)

    async def release(self) -> None:
        """Let the handlers end that wait."""
        self._released.set()

    async def hold_back(self) -> None:
        """Let them wait again."""
        self._released.clear()

    async def said(self) -> list[str]:
        """What it has logged."""
        return self._log.messages

    async def session(self) -> list[object]:
        """The server's process of its session, and after how long in silence that is ended."""
        session = self._bus.store._database.session  # type: ignore[attr-defined]
        row = await session.run(
            lambda it: it.fetchrow("SELECT pg_backend_pid(), current_setting('idle_session_timeout')")
        )
        return list(row)

    async def stand_still_in_statement(self) -> None:
        """Stop this process when the server has prepared a statement and is to be told to execute it."""

        async def begin(session: Any) -> None:
            await session.prepare("SELECT 'nobody has asked this before'")
            os.kill(os.getpid(), signal.SIGSTOP)

        await self._bus.store._database.session.run(begin)  # type: ignore[attr-defined]

    async def block(self, seconds: float) -> None:
        """Hold up the event loop."""
        time.sleep(seconds)  # noqa: ASYNC251 (that is what for)

    def _subscribe(self, subscriber_id: str, kind: str) -> None:
        # Which process it was, and which subscriber.
        who = f"{subscriber_id}-by-{self._options['name']}"

        async def wait(event: Event) -> None:
            self._history.note(f"{BEGAN}-{who}", event.id)
            await self._released.wait()
            self._history.note(who, event.id)

        async def note(event: Event) -> None:
            self._history.note(who, event.id)

        async def fail(event: Event) -> None:
            await wait(event)
            raise ValueError(f"nobody can process this in {self._options['name']}")

        async def insert(event: Event, transaction: Any) -> None:
            await transaction.execute(_INSERT_EFFECT, event.id, self._options["name"])
            await wait(event)

        async def stay_in_statement(event: Event, transaction: Any) -> None:
            await transaction.execute(_INSERT_EFFECT, event.id, self._options["name"])
            self._history.note(f"{BEGAN}-{who}", event.id)
            if not self._released.is_set():
                await transaction.execute("SELECT pg_sleep(25)")
            self._history.note(who, event.id)

        if kind == "saga":
            states = PgStateStore(self._bus.store, "counts", int)
            self._bus.subscribe(Counting(subscriber_id, states, wait))
            return
        handlers: dict[str, Callable[..., object]] = {
            "ok": note,
            "slow": wait,
            "failing": fail,
            "transactional": insert,
            "statement": stay_in_statement,
        }
        retry = {"max_retries": 0} if kind == "failing" else None
        self._bus.subscribe("order.*", handlers[kind], id=subscriber_id, retry=retry)


async def main(dsn: str, history: History, options: dict[str, Any]) -> None:
    await serve(InstanceRemote(dsn, history, options))  # type: ignore[arg-type]


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.INFO)
    logging.getLogger("postbus").propagate = False
    asyncio.run(main(sys.argv[1], History(Path(sys.argv[2])), json.loads(sys.argv[3])))
