"""Child processes that a test talks to, line by line, and kills."""

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]

T = TypeVar("T")
_numbers = itertools.count(1)


def wait_until(condition: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
    """The first true value of *condition*, asked again and again."""
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain until {what}"
        time.sleep(0.002)


class Child:
    """A module of tests/end_to_end/children in a process of its own."""

    def __init__(self, module: str, *arguments: object, folder: Path, prefix: Sequence[str] = ()) -> None:
        self._module = module
        self._said = b""
        self._errors = folder / f"{module}-{next(_numbers)}.stderr"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", f"tests.end_to_end.children.{module}", *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def say(self, line: str) -> None:
        """Give the child one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout: float = PATIENCE) -> str:
        """The child's next line."""
        assert self.process.stdout is not None
        file, deadline = self.process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._said:
            is_readable, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
            assert is_readable, f"{self._module} said nothing for {timeout:g} s\n{self.errors()}"
            chunk = os.read(file, 65536)
            assert chunk, f"{self._module} ended with {self.process.wait()}\n{self.errors()}"
            self._said += chunk
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def expect(self, line: str, timeout: float = PATIENCE) -> None:
        """Wait for the child to say exactly this."""
        heard = self.hear(timeout)
        assert heard == line, f"{self._module} said {heard!r} instead of {line!r}\n{self.errors()}"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, once it ends by itself."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self._module} did not end within {timeout:g} s\n{self.errors()}"
            ) from None

    def errors(self) -> str:
        """What it has written to its standard error."""
        return self._errors.read_text(errors="replace")[-10_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            # What a dead child did not read is of no use to anybody.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Killed(Child):
    """A child that forks one process after the other for us to kill."""

    def begin(self, role: str) -> int:
        """Have a process forked; which it is."""
        self.say(role)
        return int(self.hear())

    def end(self, process: int) -> None:
        """SIGKILL, and wait until it is gone; what it said before is of no interest."""
        os.kill(process, signal.SIGKILL)
        while (heard := self.hear()) != str(-signal.SIGKILL):
            assert heard.isalpha(), f"{heard}\n{self.errors()}"


class RemoteError(Exception):
    """What a remote bus raised: the name of its class and its message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.message = name, message


class RemoteBus(Child):
    """A bus in a child process that does what it is told."""

    def __init__(self, path: Path, folder: Path, *, prefix: Sequence[str] = (), **options: object) -> None:
        super().__init__(
            "remote_bus", path, folder / "history", json.dumps(options), folder=folder, prefix=prefix
        )
        self._answers: dict[int, dict[str, Any]] = {}
        self._commands = itertools.count(1)

    def begin(self, command: str, **arguments: object) -> int:
        """Give a command; answer() tells what came of it."""
        number = next(self._commands)
        self.say(json.dumps({"number": number, "command": command, "arguments": arguments}))
        return number

    def answer(self, number: int, timeout: float = PATIENCE) -> Any:
        """The answer to a command, or the error."""
        deadline = time.monotonic() + timeout
        while number not in self._answers:
            answer = json.loads(self.hear(deadline - time.monotonic()))
            self._answers[answer["number"]] = answer
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RemoteError(answer["error"], answer["message"])
        return answer["result"]

    def ask(self, command: str, timeout: float = PATIENCE, **arguments: object) -> Any:
        """Give a command and wait for its answer."""
        return self.answer(self.begin(command, **arguments), timeout)
