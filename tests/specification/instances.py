"""Another instance of an application, in a process of its own that a test kills."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from postbus import Event, PgEventBus, ReliableDeliveryConfig

ROOT = Path(__file__).parents[2]
_ACTIVE, _HANDLING = "active", "handling"


class Instance:
    """A bus with the subscriber "mail", whose handler never comes to its end. A context manager."""

    def __init__(self, dsn: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.specification.instances", dsn],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_active(self) -> None:
        """It has the subscriber."""
        self._expect(_ACTIVE)

    def wait_until_handling(self) -> None:
        """Its handler is at work."""
        self._expect(_HANDLING)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            pipe.close()

    def _expect(self, line: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == line, f"the instance said {said!r} instead of {line!r}"


async def live(dsn: str) -> None:
    """Until it is killed, or the test that started it is."""
    bus = PgEventBus(dsn, config=ReliableDeliveryConfig(poll_interval=0.05))

    @bus.on("*", id="mail")
    async def handle(_: Event) -> None:
        print(_HANDLING, flush=True)
        await asyncio.Event().wait()

    await bus.start()
    await bus.subscription("mail").caught_up()
    print(_ACTIVE, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1]))
