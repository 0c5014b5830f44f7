"""Many events at a time on PostgreSQL, all or none."""

from functools import partial

from bench.pg.candidates import each_peer
from postbus.ops.bench.model import Candidate, Column, Workload
from postbus.ops.bench.postgres import raw
from postbus.ops.bench.postgres.batch import RATE, TITLE, by_unnest, publish_many, unnest
from postbus.ops.bench.postgres.candidates import on_postgres

_SIZES = (100, 1_000)


def _candidates(size: int) -> tuple[Candidate, ...]:
    return (
        publish_many(size),
        unnest(size),
        on_postgres(f"raw-copy-{size}", f"raw: COPY of {size}", partial(raw.copy_batches, batch_size=size)),
        *each_peer("append", f"{size} at a time", f"-{size}", batch_size=size),
    )


WORKLOAD = Workload(
    name="pg-batch",
    title=TITLE,
    candidates=tuple(candidate for size in _SIZES for candidate in _candidates(size)),
    columns=(RATE, Column("cpu", "CPU per event", "µs")),
    ratios=tuple(map(by_unnest, _SIZES)),
    needs_postgres=True,
)
