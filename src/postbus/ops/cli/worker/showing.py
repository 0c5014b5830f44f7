"""Tells the outside how a worker is, from its first moment to its last."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import click

from postbus.ops.cli.worker.health import Address, HealthServer
from postbus.ops.cli.worker.status import Status
from postbus.ops.cli.worker.status_files import StatusFiles

logger = logging.getLogger("postbus.worker")

_SECONDS_BETWEEN_TICKS = 1.0


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where the outside looks."""

    ready_file: Path | None
    live_file: Path | None
    health: Address | None


@contextlib.asynccontextmanager
async def shown(status: Status, outlets: Outlets, what: str) -> AsyncIterator[Callable[[], None]]:
    """Show it until the block ends; what is yielded shows it at once, for when something has changed."""
    files = StatusFiles(outlets.ready_file, outlets.live_file, status)
    files.prepare()
    has_said = False

    def show() -> None:
        nonlocal has_said
        files.show()
        if status.is_started and not has_said:
            has_said = True
            # A closed output is no reason to end.
            with contextlib.suppress(OSError):
                click.echo(f"postbus worker is ready: {what}")

    try:
        async with _answering(status, outlets.health), ticking(show):
            yield show
    finally:
        files.remove()


@contextlib.asynccontextmanager
async def ticking(show: Callable[[], None]) -> AsyncIterator[None]:
    """Call it every second until the block ends."""

    async def tick() -> None:
        while True:
            show()
            await asyncio.sleep(_SECONDS_BETWEEN_TICKS)

    task = asyncio.create_task(tick(), name="postbus worker ticks")
    try:
        yield
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def _answering(status: Status, address: Address | None) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    async with HealthServer(status).listen(address) as true_address:
        logger.info("health: http://%s/ready and /live", true_address)
        yield
