"""publish → handler → done, at the durability of the default and at the lower one."""

from contextvars import ContextVar
from functools import partial
from pathlib import Path

from bench import peers
from postbus.ops.bench.model import Candidate, Column, Effort, RatioColumn, Sample, Tier, Workload
from postbus.ops.bench.sqlite import raw, raw_shared
from postbus.ops.bench.sqlite.publish import (
    BY_COMMIT,
    BY_GROUP,
    PUBLISHER_COUNTS,
    RATE,
    Run,
    at_level,
    commit_each,
    commit_groups,
    run_postbus,
    with_publishers,
)

_request_id: ContextVar[str] = ContextVar("request_id")

_RAW: tuple[tuple[str, str, Run], ...] = (
    ("raw-thread", "raw: the same in a thread of its own, awaited in an event loop", raw.commit_in_thread),
    ("raw-three", "raw: insert, processing, done: three commits (stand-in for the TypeScript reference)",
     raw.commit_three_times),
    ("raw-task-own", "raw: a task that waits for a commit in a thread and a handler, marked done later, in "
     "the table of the bus", partial(raw_shared.commit_for_tasks, table=raw_shared.OWN, task_count=1)),
)  # fmt: skip
_RAW_BATCHES: tuple[tuple[str, str, Run], ...] = (
    ("raw-tasks", "raw: 100 tasks that wait for a shared commit in a thread and a handler, marked done later",
     raw_shared.commit_for_tasks),
    ("raw-tasks-own", "raw: the same in the table of the bus, with all its columns and indexes",
     partial(raw_shared.commit_for_tasks, table=raw_shared.OWN)),
    ("raw-specified", "raw: 100 per commit, the specification's schema", raw.commit_groups_as_specified),
    ("raw-batch", "raw: executemany of 1000 in one transaction, inserted only", raw.insert_batches),
)  # fmt: skip
_PEERS: tuple[tuple[str, str, Run], ...] = (
    ("huey", "huey: enqueue, dequeue (at most once), execute", peers.run_huey),
    ("persist-queue", "persist-queue: SQLiteAckQueue put, get, ack", peers.run_persist_queue),
    ("litequeue", "litequeue: put, pop, done", peers.run_litequeue),
    ("bubus", f"bubus: dispatch, handled, logged; {peers.BUBUS_PUBLISHERS} publishers", peers.run_bubus),
    (
        "eventsourcing-1",
        "eventsourcing: stored only, one per commit",
        partial(peers.run_eventsourcing, batch_size=1),
    ),
    (
        "eventsourcing-100",
        "eventsourcing: stored only, 100 per commit",
        partial(peers.run_eventsourcing, batch_size=100),
    ),
)


def run_postbus_with_context(publisher_count: int, synchronous: str, folder: Path, effort: Effort) -> Sample:
    """The same in an application that has a context variable, as tracing and web frameworks do."""
    _request_id.set("request 1")
    return run_postbus(publisher_count, synchronous, folder, effort)


def _workload(synchronous: str, tier: Tier) -> Workload:
    def all_of(table: tuple[tuple[str, str, Run], ...]) -> tuple[Candidate, ...]:
        return tuple(at_level(name, label, run, synchronous, tier) for name, label, run in table)

    in_context = Candidate(
        name="postbus-100-context",
        label="postbus: 100 publishers that have a context variable set",
        run=partial(run_postbus_with_context, 100, synchronous),
        tier=tier,
    )
    return Workload(
        name=f"publish-{synchronous.lower()}",
        title=f"publish → handler → done, synchronous={synchronous}, 200-byte payload",
        candidates=(
            *(with_publishers(count, synchronous, tier) for count in PUBLISHER_COUNTS),
            in_context,
            commit_each(synchronous, tier),
            *all_of(_RAW),
            commit_groups(synchronous, tier),
            *all_of(_RAW_BATCHES),
            *all_of(_PEERS),
        ),
        columns=(
            RATE,
            Column("cpu", "CPU per event", "µs"),
            Column("loop_cpu", "of it in the loop", "µs"),
        ),
        ratios=(
            BY_COMMIT,
            RatioColumn("rate", "÷ one commit each, in a thread", "raw-thread"),
            RatioColumn("rate", "÷ three commits", "raw-three"),
            BY_GROUP,
            RatioColumn("rate", "÷ tasks and a thread", "raw-tasks"),
            RatioColumn("rate", "÷ specified groups", "raw-specified"),
        ),
    )


FULL = _workload("FULL", Tier.QUICK)
NORMAL = _workload("NORMAL", Tier.DEFAULT)
