"""What stands in the way of goals that are not reached: words kept by hand, figures of the run at hand."""

from collections.abc import Mapping
from dataclasses import dataclass

from postbus.ops.bench.harness import Results
from postbus.ops.bench.report import number


@dataclass(frozen=True, slots=True)
class Shown:
    """Two rows of a workload, neither of them in our hands, whose ratio shows how far anybody could come."""

    workload: str
    candidate: str
    against: str
    key: str = "rate"

    def figure(self, results: Results) -> str | None:
        """The ratio with its spread, as text; None where a run has not measured both."""
        found = results.ratio(self.workload, self.key, self.candidate, self.against)
        if found is None:
            return None
        spread = f" ({number(found.low)} … {number(found.high)})" if found.count > 1 else ""
        return f"{self.workload}/{self.candidate} ÷ {self.against}: {number(found.median)}{spread}"


@dataclass(frozen=True, slots=True)
class Limit:
    """Why a goal is out of reach, and which rows show it."""

    reason: str
    shown: tuple[Shown, ...] = ()

    def text(self, results: Results) -> str:
        """For the page."""
        figures = [figure for each in self.shown if (figure := each.figure(results)) is not None]
        return "; ".join([self.reason, *figures])


_HAND_OVER = Limit(
    "the event loop must not wait for the disk, so every commit is handed to a thread and back: no more than "
    "the bare hand-over of an INSERT can be reached (raw-thread), or of one into the table with the columns "
    "and indexes that the bus needs, with a handler that is called and a mark that the event is done "
    "(raw-task-own). Beyond that the bus checks the payload and watches the handler: Python that is three "
    "times as slow as in a busy process, because both threads have waited for the disk before. What the disk "
    "takes decides how much all this weighs: see *On another disk*",
    (
        Shown("publish-full", "raw-thread", "raw-commit"),
        Shown("publish-full", "raw-task-own", "raw-commit"),
        Shown("publish-full", "raw-thread", "raw-three"),
        Shown("publish-full", "raw-task-own", "raw-three"),
    ),
)
_ONE_LOCK = Limit(
    "100 tasks and a thread that commits for them run Python under one interpreter lock: raw-tasks does the "
    "least of that, raw-tasks-own the same in a table with the columns and indexes that the bus needs",
    (Shown("publish-full", "raw-tasks", "raw-lean"), Shown("publish-full", "raw-tasks-own", "raw-lean")),
)


def _far_beyond(peer: str) -> Limit:
    return Limit(
        "where a commit takes about 0.1 ms, those who commit each event by itself are quick. No more than so "
        "much can be done at all by bare tasks, a thread that commits for them and a handler, without any "
        "check or watch, in the leanest table and in one with the columns and indexes that the bus needs: "
        "see *On another disk*",
        (Shown("publish-full", "raw-tasks", peer), Shown("publish-full", "raw-tasks-own", peer)),
    )


# By the name of the goal.
LIMITS: Mapping[str, Limit] = {
    "1 publisher: ÷ raw, one commit per event": _HAND_OVER,
    "1 publisher: ÷ raw, three commits (stand-in for the TypeScript reference)": _HAND_OVER,
    "100 publishers: ÷ raw, 100 per commit, lean schema": _ONE_LOCK,
    "100 publishers: ÷ raw, 100 per commit, the specification's schema": _ONE_LOCK,
    "100 publishers: ÷ raw, three commits (stand-in for the TypeScript reference)": _far_beyond("raw-three"),
    "100 publishers: ÷ huey": _far_beyond("huey"),
    "100 publishers: ÷ persist-queue": _far_beyond("persist-queue"),
    "100 publishers: ÷ litequeue": _far_beyond("litequeue"),
    "100 publishers: publish p99, ms": Limit(
        "the pages of the WAL go into the file in the writer's thread, 1 to 5 ms after every 2,500 events; a "
        "second connection must not do it (below SQLite 3.51.3 that can corrupt the file)"
    ),
    "100 publishers: 1 ms ticker p99, ms": Limit(
        "one turn of the event loop that serves all 100 publishers takes 1 to 3 ms, after the tick itself"
    ),
    "100 publishers beside a CPU-bound application ÷ idle loop": Limit(
        "the application has the interpreter lock for more than half of the time; the rest does not grow "
        "when the rate in an idle loop does"
    ),
    "publish_many of 1000 → done ÷ raw executemany, inserted and marked done": Limit(
        "a handler is called for each event, with its gate and counters, where raw calls nobody"
    ),
    "PostgreSQL: 1 publisher ÷ raw, 1 connection": Limit(
        "the payload is checked, a connection lent and the statement watched: 8 µs of Python in a busy "
        "process, two to three times as much where it has waited for the disk; and one more index and wider "
        "rows on the server (raw-1-own)",
        (Shown("pg-append", "raw-1-own", "raw-1"),),
    ),
    "PostgreSQL: catch-up by 100 ÷ raw read and decode": Limit(
        "a checkpoint every 100 events is a statement that the next event has to wait for, because no more "
        "than a batch may come again after a crash",
        (Shown("pg-catch-up", "raw-decoded-100", "raw-decoded"),),
    ),
    "PostgreSQL: catch-up by 1000 ÷ raw read and decode": Limit(
        "the raw row drops every event at once; a subscriber calls a handler for each, under a watch, and "
        "keeps the page until it is processed"
    ),
    "PostgreSQL: catch-up by 1000 ÷ raw, rows only": Limit(
        "the same, and the rows have to be made events", (Shown("pg-catch-up", "raw-decoded", "raw-rows"),)
    ),
    "PostgreSQL: synchronous checkpoints ÷ raw commits": Limit(
        "raw moves a number by its key. The bus's statement is fenced by the epoch and the server of the "
        "claim, goes only forwards and holds gaps (raw-checkpoints-own). The handler, its watch, the "
        "checkpoint and a connection are 12 µs of Python in a busy process, and 16 to 28 µs where it has "
        "waited for the disk",
        (Shown("pg-catch-up", "raw-checkpoints-own", "raw-checkpoints"),),
    ),
    "PostgreSQL: synchronous checkpoints ÷ eventsourcing, tracked": Limit(
        "raw commits with nothing to deliver are themselves no more than so many times as quick, and the "
        "statement of the bus with nothing to deliver still less",
        (
            Shown("pg-catch-up", "raw-checkpoints", "eventsourcing-tracked"),
            Shown("pg-catch-up", "raw-checkpoints-own", "eventsourcing-tracked"),
        ),
    ),
    "PostgreSQL: 32 writers, notify after_commit ÷ off": Limit(
        "the buses share the notifications, but one event in 10 to 20 still has a statement of its own, on "
        "two cores that are full without"
    ),
    "PostgreSQL: beside an open gap ÷ quiet": Limit(
        "every page looks whether the gap was filled, and every checkpoint holds it: some 3 % over 800,000 "
        "events, where this run of half a second moves by more than 10 % from round to round"
    ),
    "PostgreSQL: 5 subscribers ÷ one, deliveries/s": Limit(
        "only reading and decoding are shared: every subscriber has its own copy of an event, because it may "
        "change the payload, and its own call, watch and checkpoint. Raw with copies, one loop and one "
        "UPDATE for all gets so far, and the quicker one subscriber is by itself, the less is left to share",
        (Shown("pg-fan-out", "raw-5-copied", "raw-1", "deliveries"),),
    ),
    "PostgreSQL: latency p50 ÷ raw NOTIFY and fetch": Limit(
        "commits must not wait for each other, so the notification follows in a transaction of its own, as "
        "in raw-after-commit. The rest is Python, most of it from the wake-up to the handler",
        (Shown("pg-latency", "raw-after-commit-50", "raw-50", "p50"),),
    ),
    "PostgreSQL: latency p50 ÷ eventsourcing": Limit(
        "raw NOTIFY and fetch itself takes so much of it",
        (Shown("pg-latency", "raw-50", "eventsourcing-50", "p50"),),
    ),
}
