"""One of several instances: a process of its own, which the supervisor starts and listens to.

Run as ``python -m postbus.ops.cli.worker.child APP LOG_LEVEL LOG_FORMAT REPORT_PIPE``.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

import msgspec

from postbus.ops.cli.worker.ending import end_soon
from postbus.ops.cli.worker.instance import Instance
from postbus.ops.cli.worker.leash import Leash
from postbus.ops.cli.worker.loading import find, parse_app
from postbus.ops.cli.worker.logs import set_up_logging
from postbus.ops.cli.worker.running import OK, exit_code_of
from postbus.ops.cli.worker.showing import ticking
from postbus.ops.cli.worker.signals import StopSignals


class Reports:
    """One line of JSON for each report, never waiting for a supervisor that does not read."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)
        os.set_blocking(pipe, False)
        self._pipe, self._rest = pipe, b""

    def send(self, instance: Instance) -> None:
        """Write how the instance is now, unless an older report is still on its way."""
        if self._write(self._rest):
            self._write(msgspec.json.encode(instance.status()) + b"\n")

    def _write(self, line: bytes) -> bool:
        """Whether all of it could be written."""
        self._rest = line
        # Full, or nobody is there to read: the leash tells.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            self._rest = line[os.write(self._pipe, line) :]
        return not self._rest


def main(arguments: Sequence[str]) -> int:
    """Run the instance until the supervisor or a signal ends it; the exit code."""
    app_name, log_level, log_format, pipe = arguments
    set_up_logging(log_level, log_format)
    leash, reports, app = Leash(), Reports(int(pipe)), parse_app(app_name)

    async def run(found: object) -> int:
        stop, instance = asyncio.Event(), Instance(app)
        StopSignals(stop).listen()
        leash.attach(stop, lambda: instance.shutdown_timeout)

        def report() -> None:
            reports.send(instance)

        async with ticking(report):
            await instance.run(found, stop, report)
        end_soon(OK)
        return OK

    return exit_code_of(app, lambda: asyncio.run(run(find(app))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
