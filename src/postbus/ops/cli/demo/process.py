"""The child process, from its start to its end, and the signals that end the demonstration."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

_DRAIN_SECONDS = 35.0
_LOG_LINES = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether somebody wants the demonstration to end; a second signal ends it at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that a signal has ended."""
        return 128 + (self.signal_number or 0)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Listen to SIGINT and SIGTERM."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self:
            sys.exit(128 + number)
        self.signal_number = number


class Child:
    """Runs the publishing process again and again on the same files, one at a time."""

    def __init__(self, database: Path, receipts: Path, log: Path, order_count: int) -> None:
        self._log = log
        self._arguments = [str(database), str(receipts), str(order_count)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, last: int) -> None:
        """Start it, to publish orders up to *last*; what it logs goes to a file."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "postbus.ops.cli.demo.child", *self._arguments, str(last)],
                # It ends when our end of this pipe is closed, however we end.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C is for us alone: we decide when the child stops.
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Whether it still works; an error if it ended in one."""
        if self._process is None or (code := self._process.poll()) == 0:
            return False
        if code is not None:
            raise self._failure(code)
        return True

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write anything down."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def drain(self) -> None:
        """SIGTERM: let it finish what it has in flight."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DRAIN_SECONDS)
        self._process.kill()
        # SIGTERM ends a process that has not begun yet, and then there was nothing to finish.
        if (code := self._forget()) not in {0, -signal.SIGTERM}:
            raise self._failure(code)

    def _forget(self) -> int:
        assert self._process is not None, "the child was started"
        assert self._process.stdin is not None, "it has a pipe"
        code = self._process.wait()
        self._process.stdin.close()
        self._process = None
        return code

    def _failure(self, code: int) -> click.ClickException:
        said = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return click.ClickException(
            "\n".join([f"the publishing process ended with exit code {code}; it said:", *said])
        )
