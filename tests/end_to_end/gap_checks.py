"""What was promised, checked against what writers and subscribers have told."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.end_to_end.children.gap_subscribers import (
    BATCH_SIZE,
    BATCHED,
    FILTERED,
    RARE,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
)
from tests.end_to_end.gap_history import Delivery, Transaction, read_deliveries, read_transactions
from tests.end_to_end.gap_transactions import COMMITTED, UNKNOWN

_MOST_TOLD = 40


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is left when everything has ended."""

    transactions: list[Transaction]
    deliveries: list[Delivery]
    stored: dict[str, int]
    """The number of every event in the log, by its id."""
    rare: set[str]
    """Those that the subscriber with a filter is to get."""
    streams: dict[str, tuple[str, int]]
    """Stream and version of every event that has one, by its id."""
    effects: list[str]
    """What took effect in a transaction, in that order."""
    dead_letters: list[str]
    checkpoints: dict[str, tuple[int, list[int]]]
    """Position and open gaps of every subscriber."""
    server_away: Sequence[tuple[float, float]] = ()
    """From when to when there was no server."""

    def of(self, subscriber_id: str) -> list[Delivery]:
        """What one subscriber got, in order."""
        return [each for each in self.deliveries if each.subscriber_id == subscriber_id]

    def story(self, event_ids: Iterable[str]) -> str:
        """All that was told about these events, for the message of a failure."""
        wanted = set(event_ids)
        written = [each for each in self.transactions if wanted.intersection(each.event_ids)]
        handled = [each for each in self.deliveries if each.event_id in wanted]
        numbers = [f"{each} at {self.stored.get(each)}" for each in sorted(wanted)]
        lines = [
            f"  {each}" for each in (*numbers[:_MOST_TOLD], *written[:_MOST_TOLD], *handled[:_MOST_TOLD])
        ]
        return "\n".join(
            [f"history of {len(wanted)} events, without a server {list(self.server_away)}:", *lines]
        )


async def gather(dsn: str, folder: Path, server_away: Sequence[tuple[float, float]]) -> Evidence:
    """Collect it from the database and the notes."""
    connection = await asyncpg.connect(dsn)
    try:
        events = await connection.fetch(
            "SELECT id, event_type, global_sequence, stream_id, stream_version FROM postbus.events"
        )
        effects = await connection.fetch("SELECT event_id FROM effects ORDER BY place")
        letters = await connection.fetch(
            "SELECT subscriber_id || ' ' || event_id || ' ' || error_history::text AS told "
            "FROM postbus.event_bus_dlq"
        )
        checkpoints = await connection.fetch("SELECT * FROM postbus.event_bus_checkpoints")
    finally:
        await connection.close()
    return Evidence(
        transactions=read_transactions(folder),
        deliveries=read_deliveries(folder),
        stored={row["id"]: row["global_sequence"] for row in events},
        rare={row["id"] for row in events if row["event_type"] == RARE},
        streams={
            row["id"]: (row["stream_id"], row["stream_version"])
            for row in events
            if row["stream_id"] is not None
        },
        effects=[row["event_id"] for row in effects],
        dead_letters=[row["told"] for row in letters],
        checkpoints={
            row["subscriber_id"]: (row["last_global_sequence"], row["open_gaps"]) for row in checkpoints
        },
        server_away=server_away,
    )


def check_everything(evidence: Evidence) -> None:
    """Nothing lost, nothing invented, effects once, streams in order, every dead gap passed."""
    check_log(evidence)
    for subscriber_id in (SYNCHRONOUS, BATCHED):
        got = [each.event_id for each in evidence.of(subscriber_id)]
        check_all_came(evidence, subscriber_id, got, evidence.stored.keys())
        check_streams(evidence, subscriber_id, list(dict.fromkeys(got)))
    few = [each.event_id for each in evidence.of(FILTERED)]
    check_all_came(evidence, FILTERED, few, evidence.rare)
    check_all_came(evidence, TRANSACTIONAL, evidence.effects, evidence.stored.keys())
    check_streams(evidence, TRANSACTIONAL, evidence.effects)
    assert not evidence.dead_letters, "no handler failed, and yet:\n" + "\n".join(evidence.dead_letters[:5])
    twice = [each for each, count in Counter(evidence.effects).items() if count > 1]
    assert not twice, f"took effect twice\n{evidence.story(twice)}"
    check_repetitions(evidence, SYNCHRONOUS, 1)
    # A batched checkpoint does not wait for the disk: a server that dies may lose the last one.
    most = BATCH_SIZE * (2 if evidence.server_away else 1)
    check_repetitions(evidence, BATCHED, most)
    check_repetitions(evidence, FILTERED, most)
    last = max(evidence.stored.values())
    assert evidence.checkpoints == {each: (last, []) for each in SUBSCRIBERS}


def check_log(evidence: Evidence) -> None:
    """What was acknowledged is in the log, and nothing else unless its writer does not know."""
    told = evidence.transactions
    committed = {event_id for each in told if each.outcome == COMMITTED for event_id in each.event_ids}
    missing = committed - evidence.stored.keys()
    assert not missing, f"acknowledged and not stored\n{evidence.story(missing)}"
    if not any(each.outcome == UNKNOWN for each in told):
        unknown = evidence.stored.keys() - committed
        assert not unknown, f"stored by nobody\n{evidence.story(unknown)}"


def check_all_came(
    evidence: Evidence, subscriber_id: str, got: Iterable[str], wanted: AbstractSet[str]
) -> None:
    """Every event came that the subscriber wants of the log, and no other."""
    found = set(got)
    lost, invented = wanted - found, found - wanted
    assert not lost, f"{subscriber_id} lost {len(lost)} events\n{evidence.story(lost)}"
    assert not invented, f"{subscriber_id} got what is not for it\n{evidence.story(invented)}"


def check_streams(evidence: Evidence, subscriber_id: str, in_order: Sequence[str]) -> None:
    """The first delivery of each event came after those of all that precede it in its stream."""
    versions: defaultdict[str, int] = defaultdict(int)
    for event_id in in_order:
        if event_id in evidence.streams:
            stream_id, version = evidence.streams[event_id]
            assert version == versions[stream_id] + 1, (
                f"{subscriber_id} got version {version} of {stream_id} after {versions[stream_id]}\n"
                f"{evidence.story([event_id])}"
            )
            versions[stream_id] = version


def check_repetitions(evidence: Evidence, subscriber_id: str, most: int) -> None:
    """Nothing comes twice to one process; of what one process got, at most so many events come again."""
    reigns = find_reigns(evidence, subscriber_id)
    later: set[str] = set()
    for reign in reversed(reigns):
        ids = [each.event_id for each in reign]
        twice = [each for each, count in Counter(ids).items() if count > 1]
        assert not twice, f"{subscriber_id} got events twice in {reign[0].life}\n{evidence.story(twice)}"
        again = later.intersection(ids)
        assert len(again) <= most, (
            f"{subscriber_id} got {len(again)} events of {reign[0].life} again, at most {most} may come\n"
            f"{evidence.story(again)}"
        )
        later.update(ids)


def find_reigns(evidence: Evidence, subscriber_id: str) -> list[list[Delivery]]:
    """The deliveries, parted where another process took over, the server died or came back.

    What was read before a server died may be delivered without it.
    """
    partings = [moment for away in evidence.server_away for moment in away]
    reigns: list[list[Delivery]] = []
    previous = None
    for each in evidence.of(subscriber_id):
        reign = (each.life, bisect_right(partings, each.at))
        if reign != previous:
            reigns.append([])
        reigns[-1].append(each)
        previous = reign
    return reigns


def count_repetitions(evidence: Evidence, subscriber_id: str) -> int:
    """How many deliveries were not the first of their event."""
    got = evidence.of(subscriber_id)
    return len(got) - len({each.event_id for each in got})


def find_pauses(evidence: Evidence) -> list[float]:
    """For each time that the server came back, how many seconds later the next event was delivered."""
    times = [each.at for each in evidence.deliveries]
    places = [(ready_at, bisect_right(times, ready_at)) for _, ready_at in evidence.server_away]
    return [times[place] - ready_at for ready_at, place in places if place < len(times)]
