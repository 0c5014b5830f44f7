"""Small tools of the candidates: the payload, the handler, stopwatches, percentiles, memory."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from postbus import Event
from postbus.ops.bench.model import Effort

EVENT_TYPE = "bench.published"
PAYLOAD_BYTES = 200


def make_payload(size: int) -> dict[str, object]:
    """A payload whose JSON has exactly *size* bytes."""
    fields: dict[str, object] = {"order": 42, "customer": "c-1001", "total": 99.5, "note": ""}
    fields["note"] = "x" * (size - len(msgspec.json.encode(fields)))
    return fields


PAYLOAD = make_payload(PAYLOAD_BYTES)


async def do_nothing(event: Event) -> None:
    """The handler of every workload that does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """How many events a step did; after warming up: how many a second, and the CPU time of each in µs."""

    warm_up_count: int
    total_count: int
    rate: float
    cpu: float


def repeat(step: Callable[[], int], effort: Effort, finish: Callable[[], None] = lambda: None) -> Repetition:
    """Repeat a step that says how many events it did; *finish* does what the last step left to the next."""
    warm_up_count = _repeat_for(step, effort.warm_up)
    finish()
    began, cpu_began = time.perf_counter(), time.process_time()
    count = _repeat_for(step, effort.seconds)
    finish()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return Repetition(warm_up_count, warm_up_count + count, count / seconds, cpu_seconds / count * 1e6)


def _repeat_for(step: Callable[[], int], seconds: float) -> int:
    deadline = time.perf_counter() + seconds
    count = step()
    while time.perf_counter() < deadline:
        count += step()
    return count


def log_figures(
    seen: int, count: int, began: float, cpu_began: float, memory: int = 0, subscriber_count: int = 1
) -> dict[str, float]:
    """Events a second and what each costs, in µs and bytes, unless not all were seen.

    *memory* is the peak above the start, in bytes.
    """
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    if seen != count * subscriber_count:
        raise AssertionError(f"{seen} of {count * subscriber_count} events were delivered")
    return {
        "rate": count / seconds,
        "deliveries": seen / seconds,
        "cost": seconds / count * 1e6,
        "cpu": cpu_seconds / seen * 1e6,
        "memory": memory / 2**20,
        "memory_each": memory / count,
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that *percent* of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def peak_memory() -> int:
    """The most memory that this process ever had, in bytes."""
    # Not ru_maxrss, where there is a choice: on Linux that begins with the memory of the parent.
    status = Path("/proc/self/status")
    if status.exists():
        return _status_bytes(status.read_text("ascii"), "VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(status: str, name: str) -> int:
    [line] = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024
