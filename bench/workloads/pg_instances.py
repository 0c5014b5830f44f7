"""Several processes that share one subscriber on PostgreSQL: competing workers, and partitions."""

from functools import partial

from bench.pg.candidates import of_peer
from bench.pg.instances import Wait, hold_the_process, share_work, wait_beside_others, wait_for_nothing
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Workload
from postbus.ops.bench.postgres.buses import batched_config
from postbus.ops.bench.postgres.candidates import on_postgres

_PROCESS_COUNTS = (1, 2, 4)
# So many for each process, so that every run takes about as long.
_EVENTS_OF_A_PROCESS = 1_500
_NO_OP_COUNT = 20_000
_PARTITIONS = 8


def run_instances(
    process_count: int, count: int, wait: Wait, options: dict[str, object], dsn: str, _effort: Effort
) -> Sample:
    """Until every event was handled."""
    return share_work(dsn, process_count, count, wait, options, batched_config(100))


def _waiting(name: str, label: str, process_count: int, wait: Wait, options: dict[str, object]) -> Candidate:
    plural = "es" if process_count > 1 else ""
    return on_postgres(
        f"{name}-{process_count}",
        f"postbus: {label}, {process_count} process{plural}",
        partial(run_instances, process_count, _EVENTS_OF_A_PROCESS * process_count, wait, options),
        time_limit=120.0,
    )


COMPETING = Workload(
    name="pg-competing",
    title="PostgreSQL: competing workers",
    candidates=(
        *(
            _waiting(
                "waits",
                "handler waits 1 ms, one event at a time",
                count,
                wait_beside_others,
                {"mode": "competing", "concurrency": 1},
            )
            for count in _PROCESS_COUNTS
        ),
        *(
            _waiting(
                "waits-10",
                "handler waits 1 ms, ten events at a time",
                count,
                wait_beside_others,
                {"mode": "competing", "concurrency": 10},
            )
            for count in _PROCESS_COUNTS
        ),
        on_postgres(
            "no-op",
            f"postbus: handler that does nothing, 1 process ({_NO_OP_COUNT:,} events)",
            partial(
                run_instances, 1, _NO_OP_COUNT, wait_for_nothing, {"mode": "competing", "concurrency": 10}
            ),
            time_limit=120.0,
        ),
        on_postgres(
            "pgqueuer-1000",
            f"pgqueuer: batches of 1000 ({_NO_OP_COUNT:,} events)",
            of_peer("pgqueuer", "deliver", count=_NO_OP_COUNT, batch_size=1_000),
        ),
        on_postgres(
            "pgqueuer-100",
            f"pgqueuer: batches of 100 ({_NO_OP_COUNT:,} events)",
            of_peer("pgqueuer", "deliver", count=_NO_OP_COUNT, batch_size=100),
        ),
    ),
    columns=(Column("rate", "events/s", "/s"),),
    ratios=(
        RatioColumn("rate", "÷ 1 process", "waits-1"),
        RatioColumn("rate", "÷ 1 process, ten at a time", "waits-10-1"),
    ),
    needs_postgres=True,
)

PARTITIONS = Workload(
    name="pg-partitions",
    title=f"PostgreSQL: {_PARTITIONS} partitions",
    candidates=tuple(
        _waiting(name, label, count, wait, {"partitions": _PARTITIONS})
        for name, label, wait in (
            ("waits", "handler waits 1 ms", wait_beside_others),
            ("holds", "handler holds its process for 1 ms", hold_the_process),
        )
        for count in _PROCESS_COUNTS
    ),
    columns=(Column("rate", "events/s", "/s"),),
    ratios=(
        RatioColumn("rate", "÷ 1 process that waits", "waits-1"),
        RatioColumn("rate", "÷ 1 process that is held", "holds-1"),
    ),
    note="Handlers that only wait overlap in one process already, as many as there are partitions.",
    needs_postgres=True,
)
