"""Several instances on this machine: starts them, starts them again, and lets them go together."""

import asyncio
import logging
import os
from collections.abc import Callable

from postbus.ops.cli.worker.loading import App
from postbus.ops.cli.worker.running import BAD_APP, FAILED, OK
from postbus.ops.cli.worker.showing import Outlets, shown
from postbus.ops.cli.worker.signals import StopSignals
from postbus.ops.cli.worker.slot import Slot
from postbus.ops.cli.worker.status import Phase

logger = logging.getLogger("postbus.worker")


class Supervisor:
    """All instances together."""

    def __init__(self, app: App, instance_count: int, log_level: str, log_format: str) -> None:
        arguments = (str(app), log_level, log_format)
        self._app = app
        self._slots = [Slot(number, arguments, self._change) for number in range(1, instance_count + 1)]
        self._stop = asyncio.Event()
        self._show: Callable[[], None] = lambda: None

    @property
    def is_started(self) -> bool:
        """Whether every instance has started, and none is to stop."""
        return self._phase == "started"

    @property
    def is_ready(self) -> bool:
        """Whether every instance is."""
        return self.is_started and all(slot.describe()["is_ready"] for slot in self._slots)

    @property
    def is_live(self) -> bool:
        """Whether every instance that has ever reported still does."""
        return not any(slot.is_silent for slot in self._slots)

    def describe(self) -> dict[str, object]:
        """How all of them are, for JSON."""
        return {
            "is_ready": self.is_ready,
            "pid": os.getpid(),
            "phase": self._phase,
            "instances": [slot.describe() for slot in self._slots],
        }

    async def run(self, outlets: Outlets) -> int:
        """Keep them running until a signal; the exit code."""
        StopSignals(self._stop, self._kill_all).listen()
        what = f"{self._app}, {len(self._slots)} instances"
        async with shown(self, outlets, what) as self._show, asyncio.TaskGroup() as group:
            for slot in self._slots:
                group.create_task(self._keep(slot))
            await self._stop.wait()
            self._change()
        if any(slot.is_bad_app for slot in self._slots):
            return BAD_APP
        return FAILED if any(slot.was_killed for slot in self._slots) else OK

    @property
    def _phase(self) -> Phase:
        if self._stop.is_set():
            return "stopping"
        are_started = (slot.status is not None and slot.status.phase == "started" for slot in self._slots)
        return "started" if all(are_started) else "starting"

    def _change(self) -> None:
        self._show()

    async def _keep(self, slot: Slot) -> None:
        await slot.keep(self._stop)
        if slot.is_bad_app:
            logger.critical("%s can't be loaded, and starting it again would not help: ending", self._app)
            self._stop.set()

    def _kill_all(self) -> None:
        for slot in self._slots:
            slot.kill()
