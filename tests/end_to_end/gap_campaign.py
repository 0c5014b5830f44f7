"""The stress of the gap rule: writers of every kind, and subscribers that are killed all the time.

python -m tests.end_to_end.gap_campaign --transactions 100000 [--seed 7] [--kill-server]
"""

import argparse
import asyncio
import math
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from postbus import PgEventBus
from tests.end_to_end.children.gap_subscribers import EFFECTS, RARE, SUBSCRIBERS, SYNCHRONOUS, TRANSACTIONAL
from tests.end_to_end.gap_checks import Evidence, check_everything, count_repetitions, gather
from tests.end_to_end.gap_history import Notes, Transaction
from tests.end_to_end.gap_transactions import COMMITTED, ROLLED_BACK, UNKNOWN
from tests.end_to_end.gap_watch import Wait, Watch, waits_for_dead
from tests.end_to_end.processes import Child
from tests.postgres.server import Server

WRITER_COUNT = 2
# Name and longest pause. The second one makes a standby for the first, now and then.
_SLOTS = (("a", 0.2), ("b", 5.0))
# A life is short, so that it ends at its start, or long, so that it ends at the head of the log.
_SHORT_LIFE, _LONG_LIFE = 1.0, 12.0
_SECONDS_BETWEEN_LOOKS = 0.05
# For what the writers left behind them, on a machine that does other things besides.
_MOST_SECONDS_TO_SETTLE = 60.0


class Slot:
    """A place for processes with subscribers: one lives in it, is killed, and the next one comes."""

    def __init__(self, child: Child, chance: random.Random, name: str, longest_pause: float) -> None:
        self._child, self._chance, self._name = child, chance, name
        self._longest_pause = longest_pause
        self._process: int | None = None
        self._next_at = 0.0
        self.life_count = self.kill_count = 0

    def tick(self) -> None:
        """Begin or end a life if it is time to."""
        if time.monotonic() < self._next_at:
            return
        if self._process is None:
            self.begin()
            longest = self._chance.choice((_SHORT_LIFE, _LONG_LIFE))
            self._next_at = time.monotonic() + self._chance.uniform(0.05, longest)
        else:
            self.end()
            self._next_at = time.monotonic() + self._chance.uniform(0.0, self._longest_pause)

    def begin(self) -> None:
        """A new process, unless one lives."""
        if self._process is None:
            self.life_count += 1
            self._child.say(f"{self._name}{self.life_count}")
            self._process = int(self._child.hear())

    def end(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None, "nobody lives here"
        self._kill(self._process)
        while (heard := self._child.hear()) != str(-signal.SIGKILL):
            assert heard == "begun", f"it ended by itself: {heard}\n{self._child.errors()}"
        self._process = None
        self.kill_count += 1

    def close(self) -> None:
        """Leave nobody behind."""
        if self._process is not None:
            self._kill(self._process)

    @staticmethod
    def _kill(process: int) -> None:
        # One that has ended by itself is found out by its exit code.
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened in one campaign."""

    seed: int
    evidence: Evidence
    seconds: float
    seconds_to_settle: float
    life_count: int
    kill_count: int
    waits: list[Wait]
    never_passed: list[int]

    def describe(self) -> str:
        """Its numbers."""
        told = self.evidence.transactions
        written = [each for each in told if each.kind != "publish"]
        outcomes = Counter(each.outcome for each in written)
        numbers = (
            f"{outcomes[COMMITTED]} committed, {outcomes[ROLLED_BACK]} rolled back, "
            f"{outcomes[UNKNOWN]} of unknown outcome; {len(told) - len(written)} calls of publish"
        )
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s",
            f"{len(written)} transactions: {numbers}",
            "  " + ", ".join(f"{kind} {n}" for kind, n in Counter(each.kind for each in told).most_common()),
            f"{len(self.evidence.stored)} events, up to the number {max(self.evidence.stored.values())}",
            f"{self.kill_count} kills of {self.life_count} processes with subscribers, "
            f"{len(self.evidence.server_died_at)} kills of the server",
            *(f"{each}: {self._delivered(each)}" for each in SUBSCRIBERS),
            f"settled {self.seconds_to_settle:.2f} s after the last writer",
            f"{len(self.waits)} dead numbers held up {SYNCHRONOUS}, restarts included, for "
            f"{_spread(each.in_all for each in self.waits)}; "
            "after the end of all that were at work with them for "
            f"{_spread(each.idle for each in self.waits)}",
        ]
        return "\n".join(lines)

    def _delivered(self, subscriber_id: str) -> str:
        count, again = len(self.evidence.of(subscriber_id)), count_repetitions(self.evidence, subscriber_id)
        if subscriber_id == TRANSACTIONAL:
            return f"{len(self.evidence.effects)} effects in {count} attempts"
        return f"{count} deliveries, {again} of them repetitions"


def _spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    median, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{median:.2f} s (median), {p99:.2f} s (p99), {ordered[-1]:.2f} s (longest)"


class Campaign:
    """One server, and everybody who works on it."""

    def __init__(self, server: Server, folder: Path, seed: int, *, kills_server: bool) -> None:
        self._server, self._folder, self._seed, self._kills_server = server, folder, seed, kills_server
        self._dsn = server.dsn()
        self._chance = random.Random(seed)
        self._watch = Watch(self._dsn)
        self._server_died_at: list[float] = []

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
        evidence = await gather(self._dsn, self._folder, self._server_died_at)
        waits, never_passed = waits_for_dead(self._watch.looks[SYNCHRONOUS], evidence.transactions)
        return Outcome(
            seed=self._seed,
            evidence=evidence,
            seconds=settled_at - began_at,
            seconds_to_settle=settled_at - ended_at,
            life_count=sum(slot.life_count for slot in slots),
            kill_count=sum(slot.kill_count for slot in slots),
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
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        for writer in writers:
            assert writer.wait() == 0, writer.errors()

    async def _kill_server(self) -> None:
        await self._watch.close()
        self._server_died_at.append(time.monotonic())
        self._server.kill()
        self._server.start()

    async def _settle(self, slots: list[Slot]) -> None:
        """Wait until everybody is at the end of the log; who does not get there is told of by the checks."""
        await self._store_last()
        for slot in slots:
            slot.begin()
        give_up_at = time.monotonic() + _MOST_SECONDS_TO_SETTLE
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
