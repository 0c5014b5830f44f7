"""All workloads, one module each, in the order in which they are measured and shown."""

from bench.workloads import (
    batch,
    catch_up,
    dead_letters,
    growth,
    latency,
    loop,
    pg_append,
    pg_batch,
    pg_catch_up,
    pg_disturbed,
    pg_fan_out,
    pg_growth,
    pg_instances,
    pg_latency,
    pg_takeover,
    pg_writers,
    publish,
    recovery,
    wake_up,
)
from postbus.ops.bench.model import Workload

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
        pg_append.WORKLOAD,
        pg_batch.WORKLOAD,
        pg_catch_up.WORKLOAD,
        pg_latency.WORKLOAD,
        pg_fan_out.WORKLOAD,
        pg_writers.WORKLOAD,
        pg_takeover.WORKLOAD,
        pg_instances.COMPETING,
        pg_instances.PARTITIONS,
        pg_disturbed.WORKLOAD,
        pg_growth.WORKLOAD,
    )
}
