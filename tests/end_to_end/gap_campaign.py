"""The stress of the gap rule: writers of every kind, and subscribers that are killed all the time.

python -m tests.end_to_end.gap_campaign --transactions 100000 [--seed 7] [--kill-server]
"""

import argparse
import asyncio
import math
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import asyncpg

from postbus import PgEventBus
from tests.end_to_end.children.gap_subscribers import (
    BATCHED,
    EFFECTS,
    RARE,
    SUBSCRIBERS,
    SYNCHRONOUS,
    TRANSACTIONAL,
)
from tests.end_to_end.gap_checks import check_everything, find_pauses, gather
from tests.end_to_end.gap_history import Notes, Transaction
from tests.end_to_end.gap_outcome import Outcome
from tests.end_to_end.gap_slots import Slot
from tests.end_to_end.gap_transactions import COMMITTED
from tests.end_to_end.gap_watch import Watch, waits_for_dead
from tests.end_to_end.processes import Child
from tests.postgres.server import Server

WRITER_COUNT = 2
# Name and longest pause. The second one makes a standby for the first, now and then.
_SLOTS = (("a", 0.2), ("b", 5.0))
_SECONDS_BETWEEN_LOOKS = 0.05
# For what the writers left behind them, on a machine that does other things besides.
_MOST_SECONDS_TO_SETTLE = 60.0


class Campaign:
    """One server, and everybody who works on it."""

    def __init__(self, server: Server, folder: Path, seed: int, *, kills_server: bool) -> None:
        self._server, self._folder, self._seed, self._kills_server = server, folder, seed, kills_server
        self._dsn = server.dsn()
        self._chance = random.Random(seed)
        self._watch = Watch(self._dsn)
        self._server_away: list[tuple[float, float]] = []

    async def run(self, transaction_count: int, seconds: float) -> Outcome:
        """Write so many transactions, or for so many seconds; collect what is left when all has settled."""
        began_at = time.monotonic()
        await self._make_tables()
        with ExitStack() as stack:
            writers = [
                stack.enter_context(self._start_writer(number, transaction_count // WRITER_COUNT, seconds))
                for number in range(WRITER_COUNT)
            ]
            slots = [self._make_slot(stack, *each) for each in _SLOTS]
            await self._disturb(writers, slots)
            ended_at = time.monotonic()
            await self._settle(slots)
            settled_at = time.monotonic()
        await self._watch.close()
        evidence = await gather(self._dsn, self._folder, self._server_away)
        waits, never_passed = waits_for_dead(self._watch.looks[SYNCHRONOUS], evidence.transactions)
        return Outcome(
            seed=self._seed,
            evidence=evidence,
            seconds=settled_at - began_at,
            seconds_to_settle=settled_at - ended_at,
            life_count=sum(slot.life_count for slot in slots),
            kill_count=sum(slot.kill_count for slot in slots),
            pauses=find_pauses(evidence),
            waits=waits,
            never_passed=never_passed,
        )

    async def _make_tables(self) -> None:
        async with PgEventBus(self._dsn):
            pass
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(EFFECTS)
        await connection.close()

    def _start_writer(self, number: int, count: int, seconds: float) -> Child:
        notes, seed = self._folder / f"writer-{number}", f"{self._seed}.{number}"
        server_dies = int(self._kills_server)
        return Child("gap_writer", self._dsn, notes, seed, count, seconds, server_dies, folder=self._folder)

    def _make_slot(self, stack: ExitStack, name: str, longest_pause: float) -> Slot:
        child = stack.enter_context(Child("gap_subscribers", self._dsn, self._folder, folder=self._folder))
        slot = Slot(child, self._chance, name, longest_pause)
        stack.callback(slot.close)
        return slot

    async def _disturb(self, writers: list[Child], slots: list[Slot]) -> None:
        """Kill subscribers, and perhaps the server, until the last writer has ended."""
        server_dies_at = time.monotonic() + self._chance.uniform(3.0, 8.0)
        while any(writer.process.poll() is None for writer in writers):
            for slot in slots:
                slot.tick()
            if self._kills_server and time.monotonic() > server_dies_at:
                await self._kill_server()
                server_dies_at = time.monotonic() + self._chance.uniform(4.0, 12.0)
            await self._watch.look()
            # The writers wait for these, perhaps for ever.
            self._watch.check_moving((SYNCHRONOUS, BATCHED, TRANSACTIONAL), _MOST_SECONDS_TO_SETTLE)
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        for writer in writers:
            assert writer.wait() == 0, writer.errors()

    async def _kill_server(self) -> None:
        await self._watch.close()
        died_at = time.monotonic()
        self._server.kill()
        self._server.start()
        self._server_away.append((died_at, time.monotonic()))

    async def _settle(self, slots: list[Slot]) -> None:
        """Wait until everybody is at the end of the log; who does not get there is told of by the checks."""
        await self._store_last()
        for slot in slots:
            slot.begin()
        give_up_at = time.monotonic() + _MOST_SECONDS_TO_SETTLE
        await self._watch.look()
        while not self._watch.is_settled(SUBSCRIBERS) and time.monotonic() < give_up_at:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            await self._watch.look()

    async def _store_last(self) -> None:
        """An event for everybody: over what it does not want alone, nobody writes a checkpoint."""
        connection = await asyncpg.connect(self._dsn)
        began_at = time.monotonic()
        await connection.execute(
            "INSERT INTO postbus.events (id, event_type, data) VALUES ('last', $1, '1')", RARE
        )
        await connection.close()
        last = Transaction("last", COMMITTED, began_at, time.monotonic(), ("last",), ())
        Notes(self._folder / "writer-last").transaction(last)


async def stress(
    server: Server,
    folder: Path,
    seed: int,
    transaction_count: int,
    *,
    kills_server: bool,
    seconds: float = math.inf,
) -> Outcome:
    """Run it and check every promise. AssertionError, with the seed and the history."""
    try:
        campaign = Campaign(server, folder, seed, kills_server=kills_server)
        outcome = await campaign.run(transaction_count, seconds)
        check_everything(outcome.evidence)
        assert not outcome.never_passed, f"dead and never passed: {outcome.never_passed}"
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, notes in {folder}\n{error}") from error
    return outcome


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="The stress of the gap rule.")
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="write for no longer")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--kill-server", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="postbus-gap-campaign-"))
    print(f"seed {options.seed}, notes in {folder}", flush=True)
    with Server() as server:
        running = stress(
            server,
            folder,
            options.seed,
            options.transactions,
            kills_server=options.kill_server,
            seconds=options.seconds,
        )
        print(asyncio.run(running).describe())


if __name__ == "__main__":
    main()
