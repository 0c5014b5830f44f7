"""One step of one candidate, in a process of its own: ``python -m postbus.ops.bench.child ORDER``."""

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from postbus.ops.bench.model import Effort, PeerMissingError, Workload

_STDIN = 0


def main(order_text: str) -> None:
    """Do what the order says and write the answer where it says."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    order = json.loads(order_text)
    workloads: Mapping[str, Workload] = importlib.import_module(order["catalogue"]).WORKLOADS
    candidate = workloads[order["workload"]].candidate(order["candidate"])
    folder = Path(order["folder"])
    if order["step"] == "prepare":
        assert candidate.prepare is not None, f"{candidate.name} has nothing to prepare"
        candidate.prepare(folder)
        return
    try:
        sample = candidate.run(folder, Effort(**order["effort"]))
        answer: dict[str, object] = {"figures": dict(sample.figures), "settings": sample.settings}
    except PeerMissingError as error:
        answer = {"missing": str(error)}
    Path(order["answer"]).write_text(json.dumps(answer), "utf-8")


def _end_with_parent() -> None:
    """Then the other end of standard input is closed; our own children end with us."""
    while os.read(_STDIN, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
