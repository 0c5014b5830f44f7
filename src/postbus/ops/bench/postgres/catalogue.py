"""What `postbus bench` measures on PostgreSQL, in the order in which it is shown."""

from postbus.ops.bench.model import Workload
from postbus.ops.bench.postgres import append, batch, catch_up, latency

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (append.WORKLOAD, batch.WORKLOAD, catch_up.WORKLOAD, latency.WORKLOAD)
}
