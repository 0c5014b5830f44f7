"""What stands in the way of goals that are not reached, kept by hand: the page of results shows it."""

from collections.abc import Mapping

_HAND_OVER = (
    "the event loop must not wait for the disk, so a commit takes two hand-overs between "
    "threads: the bare hand-over of an INSERT to a thread and back (publish-full/raw-thread) "
    "is at 0.6 to 0.75 of raw by itself"
)
_TWO_THREADS = (
    "one interpreter lock for the event loop (more than half of the CPU time of an event, see "
    "loop_cpu) and the writer: only SQLite's own work goes on beside the loop"
)
_RAW_IS_BARE = (
    "the raw row drops every event at once; a subscriber calls a handler for each, under a "
    "watch, and keeps the page until it is processed"
)

# By the name of the goal; with the figures that show it.
LIMITS: Mapping[str, str] = {
    "1 publisher: ÷ raw, one commit per event": _HAND_OVER,
    "1 publisher: ÷ raw, three commits (stand-in for the TypeScript reference)": _HAND_OVER,
    "100 publishers: ÷ raw, 100 per commit, lean schema": _TWO_THREADS,
    "100 publishers: ÷ raw, 100 per commit, the specification's schema": _TWO_THREADS,
    "100 publishers: ÷ raw, three commits (stand-in for the TypeScript reference)": _TWO_THREADS,
    "100 publishers: ÷ huey": _TWO_THREADS,
    "100 publishers: ÷ persist-queue": _TWO_THREADS,
    "100 publishers: ÷ litequeue": _TWO_THREADS,
    "publish_many of 1000 → done ÷ raw executemany, inserted and marked done": (
        "a handler is called for each event, with its gate and counters: about 5 µs of the 25 µs of an "
        "event, where raw has 13 µs in all and calls nobody"
    ),
    "PostgreSQL: 1 publisher ÷ raw, 1 connection": (
        "a time limit for the statement, one more index and wider rows on the server, and one "
        "notification every 4 to 8 ms"
    ),
    "PostgreSQL: catch-up by 100 ÷ raw read and decode": (
        "a checkpoint every 100 events is a round trip that redelivery of at most one batch does "
        "not allow to leave out: raw with the same checkpoints (raw-decoded-100) is at about half "
        "of raw itself"
    ),
    "100 publishers: publish p99, ms": (
        "the pages of the WAL go into the file in the writer's thread, about 5 ms after every 2,500 "
        "events; a second connection must not do it (below SQLite 3.51.3 that can corrupt the file)"
    ),
    "100 publishers: 1 ms ticker p99, ms": (
        "one turn of the event loop that serves all 100 publishers takes 2.7 ms, after the tick itself"
    ),
    "PostgreSQL: catch-up by 1000 ÷ raw read and decode": _RAW_IS_BARE,
    "PostgreSQL: catch-up by 1000 ÷ raw, rows only": _RAW_IS_BARE,
    "PostgreSQL: 32 writers, notify after_commit ÷ off": (
        "the buses share the notifications, but one event in 10 to 20 still has a statement of its own, "
        "on two cores that are full without"
    ),
    "PostgreSQL: 5 subscribers ÷ one, deliveries/s": (
        "only reading and decoding are shared; every subscriber has copies of the events of its own (0.6 µs "
        "each), a watch over its handler and a checkpoint that waits for its turn. Raw, which hands the same "
        "objects to all, gets to 4 to 5 (raw-5 and raw-1)"
    ),
    "PostgreSQL: latency p50 ÷ raw NOTIFY and fetch": (
        "the notification is a statement of its own after the commit, so that commits never wait for "
        "each other: raw in that order (raw-after-commit) is at 1.2 to 1.6 of raw itself. Beyond that, "
        "0.15 ms from the notification to the statement and 0.2 ms from its answer to the handler are "
        "the way through the loop of the subscriber, and a page takes the server 0.1 ms longer than the "
        "bare row"
    ),
    "PostgreSQL: synchronous checkpoints ÷ raw commits": (
        "a handler, a turn of the subscriber and of the pool go between two commits: about 140 µs of CPU "
        "time in the client beyond raw's, and 30 µs on the server"
    ),
    "PostgreSQL: beside an open gap ÷ quiet": (
        "as long as the writer's transaction is open, the server keeps every version of the checkpoint's "
        "row: after 2,000 checkpoints the bare UPDATE takes it 47 µs instead of 36. Besides, a checkpoint "
        "has to hold the gap (5 µs more), and the writers are looked at every 50 ms"
    ),
    "PostgreSQL: latency p50 ÷ eventsourcing": (
        "raw NOTIFY and fetch itself is no more than about 1.5 times as quick as eventsourcing here"
    ),
}
