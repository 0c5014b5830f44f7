"""Runs a candidate in a fresh process and a fresh folder, of which nothing is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from postbus.ops.bench.harness import Failed, NotInstalled, Outcome
from postbus.ops.bench.model import Candidate, Effort, Sample, Workload

_SECONDS_BETWEEN_LOOKS = 0.1


class StoppedError(Exception):
    """Somebody wants the run to end: there is no outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """*catalogue* is the module whose WORKLOADS the process knows; *base* is where its folder is made."""

    catalogue: str
    effort: Effort
    base: Path
    is_stopping: Callable[[], bool] = lambda: False

    def run(
        self,
        workload: Workload,
        candidate: Candidate,
        fill_folder: Callable[[Path], None] = lambda folder: None,  # noqa: ARG005
    ) -> Outcome:
        """One run. StoppedError, soon after somebody wants an end."""
        with tempfile.TemporaryDirectory(prefix="postbus-bench-", dir=self.base) as folder:
            data, answer = Path(folder, "data"), Path(folder, "answer.json")
            data.mkdir()
            fill_folder(data)
            order = {
                "catalogue": self.catalogue,
                "workload": workload.name,
                "candidate": candidate.name,
                "effort": asdict(self.effort),
                "folder": str(data),
                "answer": str(answer),
            }
            steps = ("prepare", "run") if candidate.prepare is not None else ("run",)
            for step in steps:
                problem = self._run_step({**order, "step": step}, Path(folder), candidate.time_limit)
                if problem is not None:
                    return Failed(problem)
            return read_answer(json.loads(answer.read_text("utf-8")))

    def _run_step(self, order: Mapping[str, object], folder: Path, time_limit: float) -> str | None:
        """Run the child with an order; what went wrong, if anything did."""
        said = folder / "errors.txt"
        with said.open("wb") as errors, _start(order, errors) as process:
            try:
                code = self._wait(process, time_limit)
            finally:
                # The whole group: a candidate may have children of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if code is None:
            return f"took longer than {time_limit:g} s"
        if code == 0:
            return None
        lines = said.read_text("utf-8", errors="replace").strip().splitlines()
        return f"exit code {code}: {lines[-1] if lines else ''}"

    def _wait(self, process: "subprocess.Popen[bytes]", time_limit: float) -> int | None:
        """The exit code; None if the process takes too long."""
        deadline = time.monotonic() + time_limit
        while (left := deadline - time.monotonic()) > 0:
            if self.is_stopping():
                raise StoppedError
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, _SECONDS_BETWEEN_LOOKS))
        return None


def read_answer(answer: Mapping[str, object]) -> Outcome:
    """What the process wrote."""
    missing, figures = answer.get("missing"), answer.get("figures")
    if missing is not None:
        return NotInstalled(str(missing))
    if not isinstance(figures, dict):
        return Failed(f"the candidate gave no figures: {answer!r}")
    return Sample(
        figures={str(key): float(value) for key, value in figures.items()}, settings=str(answer["settings"])
    )


def _start(order: Mapping[str, object], errors: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        # Not from the current folder, but from wherever we import ourselves.
        [sys.executable, "-P", "-m", "postbus.ops.bench.child", json.dumps(order)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        # It ends when our end of this pipe is closed, however we end.
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        # Ctrl-C is for us alone: we decide when the process stops.
        start_new_session=True,
    )
