"""What was promised of many instances, checked against what they and the publisher have told."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import asyncpg

from tests.end_to_end.children.leader_instances import (
    BATCH_SIZE,
    BATCHED,
    BEGAN,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
)
from tests.end_to_end.gap_history import Delivery, read_deliveries, read_transactions

# Every write of a checkpoint, by whom, in the order of the commits: the row is locked until then.
TABLES = """
CREATE TABLE effects (
    place bigint GENERATED ALWAYS AS IDENTITY, event_id text, instance text, epoch bigint
);
CREATE TABLE checkpoint_writes (
    place bigint GENERATED ALWAYS AS IDENTITY,
    subscriber_id text, epoch bigint, position bigint, instance text
);
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO checkpoint_writes (subscriber_id, epoch, position, instance)
    VALUES (NEW.subscriber_id, NEW.epoch, NEW.last_global_sequence, current_setting('application_name'));
    RETURN NULL;
END $$;
CREATE TRIGGER note_write AFTER INSERT OR UPDATE ON postbus.event_bus_checkpoints
FOR EACH ROW EXECUTE FUNCTION note_write();
"""
_MOST_TOLD = 60


class Write(NamedTuple):
    """One committed write of a checkpoint, or of an effect."""

    subscriber_id: str
    epoch: int
    position: int
    instance: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is left when everything has ended."""

    acknowledged: list[str]
    """The events whose publish returned, told by the publisher."""
    deliveries: list[Delivery]
    """Told by the instances."""
    stored: set[str]
    writes: list[Write]
    effects: list[tuple[str, str, int]]
    """Event, instance and epoch, in the order of the commits."""
    dead_letters: list[str]

    def of(self, subscriber_id: str) -> list[str]:
        """What one subscriber got, in order."""
        return [each.event_id for each in self.deliveries if each.subscriber_id == subscriber_id]

    def repetitions(self, subscriber_id: str) -> int:
        """How many deliveries were not the first of their event."""
        got = self.of(subscriber_id)
        return len(got) - len(set(got))

    def epoch_count(self, subscriber_id: str) -> int:
        """How often it was claimed."""
        return len({each.epoch for each in self.writes if each.subscriber_id == subscriber_id})

    def story(self, event_ids: Iterable[str]) -> str:
        """All that was told about these events, for the message of a failure."""
        wanted = set(event_ids)
        told = [f"  {each}" for each in self.deliveries if each.event_id in wanted]
        told += [f"  effect {each}" for each in self.effects if each[0] in wanted]
        return "\n".join([f"history of {len(wanted)} events:", *told[:_MOST_TOLD]])


async def gather(dsn: str, folder: Path) -> Evidence:
    """Collect it from the notes, and from the database what was committed."""
    connection = await asyncpg.connect(dsn)
    try:
        events = await connection.fetch("SELECT id FROM postbus.events")
        writes = await connection.fetch(
            "SELECT subscriber_id, epoch, position, instance FROM checkpoint_writes ORDER BY place"
        )
        effects = await connection.fetch("SELECT event_id, instance, epoch FROM effects ORDER BY place")
        letters = await connection.fetch(
            "SELECT subscriber_id || ' ' || event_id || ' ' || error_history::text FROM postbus.event_bus_dlq"
        )
    finally:
        await connection.close()
    return Evidence(
        acknowledged=[each for told in read_transactions(folder) for each in told.event_ids],
        deliveries=read_deliveries(folder),
        stored={row[0] for row in events},
        writes=[Write(*row) for row in writes],
        effects=[(row[0], row[1], row[2]) for row in effects],
        dead_letters=[row[0] for row in letters],
    )


def check_everything(evidence: Evidence, disturbance_count: int) -> None:
    """Nothing lost, few repetitions, effects once, and never two instances whose writes both count."""
    missing = set(evidence.acknowledged) - evidence.stored
    assert not missing, f"acknowledged and not stored: {sorted(missing)}"
    effects = [event_id for event_id, _, _ in evidence.effects]
    for who, got in (
        (SYNCHRONOUS, evidence.of(SYNCHRONOUS)),
        (BATCHED, evidence.of(BATCHED)),
        (TRANSACTIONAL, effects),
    ):
        lost, invented = evidence.stored - set(got), set(got) - evidence.stored
        assert not lost, f"{who} lost {len(lost)} events\n{evidence.story(lost)}"
        assert not invented, f"{who} got what nobody has stored: {sorted(invented)[:_MOST_TOLD]}"
    assert not evidence.dead_letters, "no handler failed, and yet:\n" + "\n".join(evidence.dead_letters[:5])
    twice = [each for each, count in Counter(effects).items() if count > 1]
    assert not twice, f"took effect twice\n{evidence.story(twice)}"
    for who, most in ((BEGAN + SYNCHRONOUS, 1), (BATCHED, BATCH_SIZE)):
        count = evidence.repetitions(who)
        assert count <= most * disturbance_count, (
            f"{count} repetitions of {who} after {disturbance_count} disturbances\n"
            + evidence.story(each for each, n in Counter(evidence.of(who)).items() if n > 1)
        )
    for subscriber_id in SUBSCRIBERS:
        check_one_owner(evidence, subscriber_id)


def check_one_owner(evidence: Evidence, subscriber_id: str) -> None:
    """Epochs and positions only go up, and all that was committed under one epoch is of one instance.

    So whatever an instance did after another had its first write under a higher epoch took no effect.
    """
    writes = [each for each in evidence.writes if each.subscriber_id == subscriber_id]
    owners: defaultdict[int, set[str]] = defaultdict(set)
    for before, after in pairwise(writes):
        is_forward = after.epoch >= before.epoch and after.position >= before.position
        assert is_forward, f"a write that was overtaken has counted: {before}, then {after}"
    for write in writes:
        owners[write.epoch].add(write.instance)
    if subscriber_id == TRANSACTIONAL:
        for _, instance, epoch in evidence.effects:
            owners[epoch].add(instance)
        epochs = [epoch for _, _, epoch in evidence.effects]
        assert epochs == sorted(epochs), "an effect under an epoch that was over has counted"
    several = {epoch: sorted(names) for epoch, names in owners.items() if len(names) > 1}
    assert not several, f"{subscriber_id} had several owners at once: {several}"
