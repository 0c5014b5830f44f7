"""One bus in this process: made, started, and shut down when somebody says stop."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from postbus import EventBus, EventBusShutdownError
from postbus.config import DEFAULT_SHUTDOWN_TIMEOUT
from postbus.ops.cli.worker.loading import App, make_bus
from postbus.ops.cli.worker.status import InstanceStatus, Phase, subscriptions_of

logger = logging.getLogger("postbus.worker")

_SECONDS_BETWEEN_LOOKS = 1.0

T = TypeVar("T")


class Instance:
    """A bus from its start to its end, and how it is in between."""

    is_live = True
    """Nobody can ask whose event loop hangs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._bus: EventBus | None = None
        self._phase: Phase = "starting"

    @property
    def is_started(self) -> bool:
        """Whether the bus is started and not shutting down."""
        return self._phase == "started"

    @property
    def is_ready(self) -> bool:
        """Whether it is started and every subscription is in a good state."""
        return self.status().is_ready

    @property
    def shutdown_timeout(self) -> float:
        """How long the bus takes for its shutdown at most."""
        return DEFAULT_SHUTDOWN_TIMEOUT if self._bus is None else self._bus.shutdown_timeout

    def status(self) -> InstanceStatus:
        """How it is now."""
        return InstanceStatus(
            pid=os.getpid(),
            phase=self._phase,
            shutdown_timeout=self.shutdown_timeout,
            subscriptions=() if self._bus is None else subscriptions_of(self._bus),
        )

    def describe(self) -> dict[str, object]:
        """How it is now, for JSON."""
        return self.status().describe()

    async def run(self, found: object, stop: asyncio.Event, show: Callable[[], None]) -> None:
        """Run the bus until *stop*; *show* is called at every change. BadAppError, PostbusError."""
        with contextlib.suppress(_Stopped):
            self._bus = await _unless(stop, make_bus(self._app, found))
        if self._bus is None:
            return
        try:
            with contextlib.suppress(_Stopped):
                await _unless(stop, self._bus.start())
                self._greet(self._bus)
                self._enter("started", show)
                await self._wait(self._bus, stop)
        finally:
            self._enter("stopping", show)
            await self._bus.shutdown()
        logger.info("%s has shut down", self._app)

    def _greet(self, bus: EventBus) -> None:
        ids = ", ".join(handle.id for handle in bus.subscriptions)
        if not ids and bus._subscriptions.is_empty:
            logger.warning(
                "%s has no subscriptions: nothing will be delivered; subscribe where the bus is made, or "
                "import the modules that do",
                self._app,
            )
        logger.info("%s has started; subscribers: %s", self._app, ids or "none")

    async def _wait(self, bus: EventBus, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if _is_shut_down(bus):
                logger.warning("%s was shut down by the application: the worker ends", self._app)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS_BETWEEN_LOOKS):
                    await stop.wait()

    def _enter(self, phase: Phase, show: Callable[[], None]) -> None:
        self._phase = phase
        show()


class _Stopped(Exception):
    """Somebody said stop before it was done."""


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled when somebody says stop. _Stopped."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        working.cancel()
    if stop.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await working
        raise _Stopped
    return await working


def _is_shut_down(bus: EventBus) -> bool:
    try:
        bus.dlq  # noqa: B018
    except EventBusShutdownError:
        return True
    return False
