"""All workloads, one module each, in the order in which they are measured and shown."""

from bench.model import Workload
from bench.workloads import batch, dead_letters, growth, latency, loop, publish, recovery

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        publish.FULL,
        publish.NORMAL,
        latency.WORKLOAD,
        loop.WORKLOAD,
        batch.WORKLOAD,
        dead_letters.WORKLOAD,
        recovery.WORKLOAD,
        growth.WORKLOAD,
    )
}
