"""All workloads, one module each, in the order in which they are measured and shown."""

from bench.model import Workload
from bench.workloads import batch, catch_up, dead_letters, growth, latency, loop, publish, recovery, wake_up

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
        catch_up.CATCH_UP,
        catch_up.LOG_GROWTH,
        wake_up.WORKLOAD,
    )
}
