"""One step of one candidate, in a process of its own: started by the harness."""

import json
import sys
from pathlib import Path

from bench.model import Effort, PeerMissingError
from bench.workloads import WORKLOADS


def main(order_text: str) -> None:
    """Do what the order says and write the answer where it says."""
    order = json.loads(order_text)
    candidate = WORKLOADS[order["workload"]].candidate(order["candidate"])
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


if __name__ == "__main__":
    main(sys.argv[1])
