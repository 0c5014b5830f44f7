"""What `postbus bench` measures on SQLite, in the order in which it is shown."""

from postbus.ops.bench.model import Workload
from postbus.ops.bench.sqlite import batch, catch_up, publish, wake_up

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (publish.WORKLOAD, batch.WORKLOAD, catch_up.WORKLOAD, wake_up.WORKLOAD)
}
