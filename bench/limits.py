"""What stands in the way of goals that are not reached, kept by hand: the page of results shows it."""

from collections.abc import Mapping

_HAND_OVER = (
    "the event loop must not wait for the disk, so a commit takes two hand-overs between "
    "threads: the bare hand-over of an INSERT to a thread and back (publish-full/raw-thread) "
    "is at 0.5 to 0.7 of raw by itself"
)
_TWO_THREADS = (
    "one interpreter lock for the event loop (about half of the CPU time of an event, see "
    "loop_cpu) and the writer"
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
    "100 publishers: ÷ raw, three commits (stand-in for the TypeScript reference)": _TWO_THREADS,
    "publish_many of 1000 → done ÷ raw executemany, inserted and marked done": (
        "a handler is called for each event, with its timeout, gate and counters: about 10 µs of "
        "the 30 µs of an event, where raw has 13 µs in all and calls nobody"
    ),
    "PostgreSQL: 1 publisher ÷ raw, 1 connection": (
        "a time limit for the statement, one more index and wider rows on the server, and one "
        "notification every 4 ms"
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
        "each of 32 buses notifies for itself, a statement for nearly every event, on two cores "
        "that are full without"
    ),
    "PostgreSQL: 5 subscribers ÷ one, deliveries/s": (
        "reading is shared and costs less than before: the less it costs, the less there is to share"
    ),
    "PostgreSQL: latency p50 ÷ raw NOTIFY and fetch": (
        "the notification is a statement of its own after the commit, so that commits never wait for "
        "each other: raw in that order (raw-after-commit) is at 1.2 to 1.6 of raw itself"
    ),
    "PostgreSQL: beside an open gap ÷ quiet": (
        "a checkpoint has to hold the gap, and the writers are looked at every 50 ms"
    ),
    "PostgreSQL: latency p50 ÷ eventsourcing": (
        "raw NOTIFY and fetch itself is no more than about 1.5 times as quick as eventsourcing here"
    ),
}
