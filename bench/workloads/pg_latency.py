"""From the call of publish in one process to the handler in another, on PostgreSQL."""

from functools import partial

from bench.pg.candidates import load_peer
from postbus.ops.bench.model import Candidate, Effort, Sample, Workload
from postbus.ops.bench.postgres.candidates import on_postgres
from postbus.ops.bench.postgres.latency import (
    COLUMNS,
    TITLE,
    across_processes,
    by_raw,
    notify_and_fetch,
    postbus,
    run_across_processes,
)

_RATES = (50, 500)


def run_peer(package: str, rate: int, dsn: str, effort: Effort) -> Sample:
    """The same with a peer. PeerMissingError."""
    return run_across_processes(load_peer(package).__name__, rate, dsn, effort)


def _peer(package: str, rate: int) -> Candidate:
    return on_postgres(f"{package}-{rate}", f"{package}, {rate} events/s", partial(run_peer, package, rate))


def _candidates(rate: int) -> tuple[Candidate, ...]:
    # procrastinate gets no 500 events a second done.
    peers = ("eventsourcing", "pgqueuer", *(("procrastinate",) if rate < 500 else ()))
    return (
        postbus(rate),
        across_processes("postbus-trigger", 'postbus, notify="trigger"', "bench.pg.by_trigger", rate),
        notify_and_fetch(rate),
        across_processes("raw-after-commit", "raw: NOTIFY after the commit", "bench.pg.after_commit", rate),
        *(_peer(package, rate) for package in peers),
    )


WORKLOAD = Workload(
    name="pg-latency",
    title=TITLE,
    candidates=tuple(candidate for rate in _RATES for candidate in _candidates(rate)),
    columns=COLUMNS,
    ratios=tuple(map(by_raw, _RATES)),
    needs_postgres=True,
)
