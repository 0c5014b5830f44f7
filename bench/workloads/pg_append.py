"""Single events on PostgreSQL: published, enqueued or inserted, one commit or a shared one."""

from functools import partial

from bench.pg.candidates import each_peer, of_peer
from bench.pg.own_inserts import append_own
from postbus.ops.bench.model import Column, RatioColumn, Tier, Workload
from postbus.ops.bench.postgres import raw
from postbus.ops.bench.postgres.append import (
    BY_EIGHT,
    BY_ONE,
    RATE,
    TITLE,
    with_connections,
    with_publishers,
)
from postbus.ops.bench.postgres.candidates import on_postgres

_PUBLISHER_COUNTS = (
    (1, Tier.QUICK),
    (8, Tier.DEFAULT),
    (32, Tier.DEFAULT),
    (100, Tier.QUICK),
    (256, Tier.DEFAULT),
)
_THREAD_COUNT = 8

WORKLOAD = Workload(
    name="pg-append",
    title=TITLE,
    candidates=(
        *(with_publishers(count, tier) for count, tier in _PUBLISHER_COUNTS),
        *(with_connections(count) for count in (1, 8, 32)),
        on_postgres(
            "raw-1-own",
            "raw: the same with the statement of the bus, into its table, 1 connection",
            append_own,
        ),
        on_postgres(
            "raw-32-notify",
            "raw: 32 connections, NOTIFY in the transaction",
            partial(raw.append_each, connection_count=32, with_notify=True),
        ),
        *each_peer("append", "one at a time", batch_size=1),
        on_postgres(
            "eventsourcing-threads",
            f"eventsourcing: one at a time in each of {_THREAD_COUNT} threads",
            of_peer("eventsourcing", "append", batch_size=1, thread_count=_THREAD_COUNT),
            tier=Tier.DEFAULT,
        ),
    ),
    columns=(
        RATE,
        Column("cpu", "CPU per event", "µs"),
        Column("p50", "p50", "ms"),
        Column("p99", "p99", "ms"),
    ),
    ratios=(
        BY_ONE,
        BY_EIGHT,
        RatioColumn("rate", "÷ raw 32, NOTIFY", "raw-32-notify"),
    ),
    needs_postgres=True,
)
