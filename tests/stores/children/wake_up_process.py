"""A process that listens and announces as its parent says, one command a line.

Argument: the database. Every command is answered by one line, "woken" comes in between.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from postbus.stores.sqlite.wake_up import FileWakeUps

NOBODY = 65534


class WakeUpProcess:
    """One method for each command; what it returns is the answer."""

    def __init__(self, database: Path) -> None:
        self._wake_ups = FileWakeUps(database)
        self._listing_count = 0

    def listen(self) -> bool:
        self._wake_ups.listen(lambda: print("woken", flush=True))
        return self._wake_ups.is_listening

    def announce(self) -> str:
        self._wake_ups.announce()
        return "announced"

    def announce_a_thousand_times(self) -> int:
        """How often they list the folder."""
        sys.addaudithook(self._count_listing)
        for _ in range(1_000):
            self._wake_ups.announce()
        return self._listing_count

    def come_and_go(self) -> int:
        """How often listening was not possible."""
        failure_count = 0
        for _ in range(300):
            self._wake_ups.listen(lambda: None)
            failure_count += not self._wake_ups.is_listening
            self._wake_ups.close()
        return failure_count

    def drop_privileges(self) -> str:
        """Root may write everything: become somebody who may not."""
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return "dropped"

    def fork(self) -> int:
        """A child that lives on with what it has inherited."""
        child = os.fork()
        if child == 0:
            # Who waits for the end of the parent waits for the end of its pipes too.
            os.close(sys.stdin.fileno())
            os.close(sys.stdout.fileno())
            # It must not outlive the test for long, whatever happens to the parent.
            time.sleep(60)
            os._exit(0)
        return child

    def fork_and_close(self) -> int:
        """A child that closes what it has inherited, and ends; its exit code."""
        child = os.fork()
        if child == 0:
            self._wake_ups.announce()
            self._wake_ups.close()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def end(self) -> str:
        self._wake_ups.close()
        return "ended"

    def _count_listing(self, event: str, arguments: object) -> None:
        self._listing_count += event in ("os.listdir", "os.scandir")


async def main(database: Path) -> None:
    process = WakeUpProcess(database)
    # Imported and ready: what follows takes no time worth speaking of.
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        command: Callable[[], object] = getattr(process, line)
        print(command(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
