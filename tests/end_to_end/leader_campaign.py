"""Three instances of an application, whose leader is killed, stopped or cut off all the time.

python -m tests.end_to_end.leader_campaign --kills 200 [--seed 7]
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from postbus import PgEventBus
from postbus.stores.postgres.lock_keys import lock_key
from tests.end_to_end.children.leader_instances import (
    BATCHED,
    BEGAN,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
)
from tests.end_to_end.leader_checks import TABLES, Evidence, check_everything, gather
from tests.end_to_end.leader_seats import Seat
from tests.end_to_end.processes import Child
from tests.postgres.server import Server

FAILOVER_TIMEOUT = 2.0
KILLED, STOPPED, CUT_OFF = "killed", "stopped", "cut off"
_KINDS = (KILLED, STOPPED, CUT_OFF)
# So that most are killed: to wait for one that stands still takes its time.
_CHANCES = (12, 1, 3)
_EVENTS_A_SECOND = 150
_LONGEST_REIGN = 0.3
_SECONDS_BETWEEN_LOOKS = 0.003
# For a machine that does other things besides; what is usual is in the outcome.
_MOST_SECONDS_TO_TAKE_OVER = 20.0
_MOST_SECONDS_TO_SETTLE = 60.0
_LEADER = """
SELECT activity.application_name, checkpoint.epoch
FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid),
    postbus.event_bus_checkpoints AS checkpoint
WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 2
    AND lock.classid = ($1::bigint & 4294967295)::oid AND lock.objid = ($2::bigint & 4294967295)::oid
    AND checkpoint.subscriber_id = $3
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened in one campaign."""

    seed: int
    evidence: Evidence
    seconds: float
    takeovers: dict[str, list[float]]
    """For each kind of disturbance, how many seconds later another ownership had begun."""

    @property
    def disturbance_count(self) -> int:
        """How often the leader was disturbed."""
        return sum(map(len, self.takeovers.values()))

    def describe(self) -> str:
        """Its numbers."""
        evidence = self.evidence
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s",
            f"{len(evidence.acknowledged)} events acknowledged, {len(evidence.stored)} stored, 0 lost",
            *(
                f"leader {kind} {len(seconds)} times, followed after {_spread(seconds)}"
                for kind, seconds in self.takeovers.items()
                if seconds
            ),
            *(
                f"{who}: {len(evidence.of(who))} deliveries, {evidence.repetitions(who)} of them repetitions"
                for who in (BEGAN + SYNCHRONOUS, BATCHED)
            ),
            f"{TRANSACTIONAL}: {len(evidence.effects)} effects in {len(evidence.of(TRANSACTIONAL))} attempts",
            "ownerships: " + ", ".join(f"{who} {evidence.epoch_count(who)}" for who in SUBSCRIBERS),
        ]
        return "\n".join(lines)


@dataclass
class Campaign:
    """One server, three seats for instances, and a publisher."""

    dsn: str
    folder: Path
    seed: int
    takeovers: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})

    async def run(self, kill_count: int) -> Outcome:
        """Kill so many leaders, and stop or cut off some; collect what is left when all has settled."""
        began_at = time.monotonic()
        chance = random.Random(self.seed)
        async with PgEventBus(self.dsn):
            pass
        self._connection = await asyncpg.connect(self.dsn)
        await self._connection.execute(TABLES)
        with ExitStack() as stack:
            seats = {letter: self._make_seat(stack, letter) for letter in "abc"}
            publisher = stack.enter_context(self._start_publisher())
            while len(self.takeovers[KILLED]) < kill_count:
                # Each kind once, and then as it comes.
                missing = [kind for kind in _KINDS if not self.takeovers[kind]]
                kind = missing[0] if missing else chance.choices(_KINDS, _CHANCES)[0]
                await self._disturb(seats, kind, chance.choice(SUBSCRIBERS))
                await asyncio.sleep(chance.uniform(0.0, _LONGEST_REIGN))
            assert publisher.process.stdin is not None
            publisher.process.stdin.close()
            assert publisher.wait() == 0, publisher.errors()
            await self._settle()
        await self._connection.close()
        return Outcome(
            seed=self.seed,
            evidence=await gather(self.dsn, self.folder),
            seconds=time.monotonic() - began_at,
            takeovers=self.takeovers,
        )

    def _make_seat(self, stack: ExitStack, letter: str) -> Seat:
        child = Child("leader_instances", self.dsn, self.folder, FAILOVER_TIMEOUT, folder=self.folder)
        seat = Seat(stack.enter_context(child), letter)
        stack.callback(seat.close)
        seat.begin()
        return seat

    def _start_publisher(self) -> Child:
        notes = self.folder / "writer-publisher"
        return Child("leader_publisher", self.dsn, notes, _EVENTS_A_SECOND, folder=self.folder)

    async def _disturb(self, seats: dict[str, Seat], kind: str, subscriber_id: str) -> None:
        """Disturb whoever is the leader of this subscriber, and wait until another ownership has begun."""
        name, epoch = await self._find_leader(subscriber_id)
        seat = seats[name[0]]
        began_at = time.monotonic()
        match kind:
            case "killed":
                seat.kill()
            case "stopped":
                seat.stand_still()
            case _:
                await self._connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", name
                )
        try:
            await self._wait_for_claim(subscriber_id, epoch)
        finally:
            if kind == STOPPED:
                seat.go_on()
        self.takeovers[kind].append(time.monotonic() - began_at)

    async def _find_leader(self, subscriber_id: str) -> tuple[str, int]:
        key = lock_key("postbus", subscriber_id)
        give_up_at = time.monotonic() + _MOST_SECONDS_TO_TAKE_OVER
        while time.monotonic() < give_up_at:
            row = await self._connection.fetchrow(_LEADER, *key, subscriber_id)
            if row is not None:
                return row[0], row[1]
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        raise AssertionError(f"nobody is the leader of {subscriber_id}")

    async def _wait_for_claim(self, subscriber_id: str, epoch: int) -> None:
        query = "SELECT epoch FROM postbus.event_bus_checkpoints WHERE subscriber_id = $1"
        give_up_at = time.monotonic() + _MOST_SECONDS_TO_TAKE_OVER
        while await self._connection.fetchval(query, subscriber_id) == epoch:
            assert time.monotonic() < give_up_at, f"nobody took over {subscriber_id} from epoch {epoch}"
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)

    async def _settle(self) -> None:
        """Wait until all are at the end of the log; who does not get there is told of by the checks."""
        query = """
            SELECT count(*) FROM postbus.event_bus_checkpoints
            WHERE last_global_sequence >= (SELECT max(global_sequence) FROM postbus.events)
        """
        give_up_at = time.monotonic() + _MOST_SECONDS_TO_SETTLE
        while time.monotonic() < give_up_at:
            if await self._connection.fetchval(query) == len(SUBSCRIBERS):
                return
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)


async def harass(dsn: str, folder: Path, seed: int, kill_count: int) -> Outcome:
    """Run it and check every promise. AssertionError, with the seed and the history."""
    try:
        outcome = await Campaign(dsn, folder, seed).run(kill_count)
        check_everything(outcome.evidence, outcome.disturbance_count)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, notes in {folder}\n{error}") from error
    return outcome


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    median, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{median:.3f} s (median), {p99:.3f} s (p99), {ordered[-1]:.3f} s (longest)"


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="Leaders that are killed, stopped and cut off.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="postbus-leader-campaign-"))
    print(f"seed {options.seed}, notes in {folder}", flush=True)
    with Server() as server:
        print(asyncio.run(harass(server.dsn(), folder, options.seed, options.kills)).describe())


if __name__ == "__main__":
    main()
