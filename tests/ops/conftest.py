"""A file with dead letters for the commands to work on."""

import asyncio
from pathlib import Path

import pytest

from postbus import Event, EventBus, RetryPolicy
from tests.ops.commands import ESCAPE


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the person who runs the tests."""
    for name in ("POSTBUS_URL", "NO_COLOR", "FORCE_COLOR", "UV"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file with three dead letters, mail-1 to mail-3, and an event that is done."""
    path = tmp_path / "events.db"
    asyncio.run(fill(path))
    return path


async def fill(path: Path) -> None:
    bus = EventBus(path, retry=RetryPolicy(max_retries=0))

    @bus.on("mail.*")
    async def send(event: Event) -> None:
        if event.type == "mail.queued":
            raise ValueError(f"no [address] in {event.id}{ESCAPE}[2J\nsecond line")

    async with bus:
        for number in (1, 2, 3):
            await bus.publish("mail.queued", {"n": number}, {"source": "web"}, event_id=f"mail-{number}")
        await bus.publish("mail.sent", event_id="sent")
