"""PostgreSQL's sequence and its writers in small, and readers of the log: every way they can meet.

The writers take the steps that real ones take, in any order: lock the sequence, draw a number, write it
(only then they have a transaction id), prepare, commit or roll back, let go of the lock. The reader takes
its own steps in between. A number is lost if it appears after the reader has given it up.
"""

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from postbus.events import WriterSample
from postbus.policy.horizon import WriterHorizon

IDLE, OPEN, PREPARED, ENDED, GONE = range(5)


# Sets of numbers are bit masks, and whatever can't matter any more is left out of a state: there are
# some hundred thousand of them.
class Writer(NamedTuple):
    """One transaction and how far it has come."""

    phase: int = IDLE
    drawn: int = 0
    written: int = 0
    was_prepared: bool = False


class Reader(NamedTuple):
    """One subscriber: what it has seen, which gaps are open, and what its rule remembers."""

    step: int = 0
    high: int = 0
    holders: tuple[str, ...] = ()
    head: int = 0
    open: int = 0
    given_up: int = 0
    memory: Any = None


class World(NamedTuple):
    """The database and its reader at one moment."""

    writers: tuple[Writer, ...]
    reader: Reader
    last_drawn: int = 0
    # The highest visible number, and the visible ones that the reader has not fetched.
    high: int = 0
    news: int = 0

    @property
    def undecided(self) -> int:
        """The numbers that may still appear."""
        return functools.reduce(int.__or__, (writer.drawn for writer in self.writers), 0)

    @property
    def is_lossy(self) -> bool:
        """Whether a number has appeared that the reader will never look for."""
        return bool(self.news & self.reader.given_up)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is at work, and at most the name of one that has ended is left."""
        return all(
            writer.phase in (IDLE, GONE) or (writer.phase == ENDED and not writer.was_prepared)
            for writer in self.writers
        )


Step = Callable[[World], World]


@dataclass(frozen=True)
class Model:
    """So many writers of so many numbers each, against a reader that takes its steps so many times."""

    steps: tuple[Step, ...]
    writer_count: int = 3
    number_count: int = 1
    poll_count: int = 3
    # Whether a transaction that has ended is listed for a while before its lock is gone.
    has_stragglers: bool = False

    def search(self) -> "Search":
        """Go through all that can happen, up to the first loss."""
        start = World((Writer(),) * self.writer_count, Reader())
        came_from: dict[World, World | None] = {start: None}
        queue = deque([start])
        while queue:
            world = queue.popleft()
            if world.is_lossy:
                return Search(came_from, world)
            for following in self._next_worlds(world):
                if following not in came_from:
                    came_from[following] = world
                    queue.append(following)
        return Search(came_from)

    def poll(self, world: World) -> World:
        """Take all the reader's steps at once."""
        return functools.reduce(lambda reached, step: step(reached), self.steps, world)

    def _next_worlds(self, world: World) -> Iterator[World]:
        for at, writer in enumerate(world.writers):
            # Writers are alike: it is enough to have them begin one after the other.
            if writer.phase == IDLE and at and world.writers[at - 1].phase == IDLE:
                break
            for moved, published in self._next_writers(writer, world.last_drawn):
                writers = (*world.writers[:at], moved, *world.writers[at + 1 :])
                last_drawn = max(world.last_drawn, highest(moved.drawn))
                high = max(world.high, highest(published))
                yield World(writers, world.reader, last_drawn, high, world.news | published)
        if world.reader.step < self.poll_count * len(self.steps):
            after = self.steps[world.reader.step % len(self.steps)](world)
            given_up = after.reader.given_up & (after.undecided | after.news)
            reader = after.reader._replace(step=world.reader.step + 1, given_up=given_up)
            yield after._replace(reader=reader)

    def _next_writers(self, writer: Writer, last_drawn: int) -> Iterator[tuple[Writer, int]]:
        """Where a writer can go, and what becomes visible by it."""
        phase, drawn, written, was_prepared = writer
        if phase == IDLE:
            yield Writer(OPEN), 0
        elif phase == OPEN:
            if drawn.bit_count() < self.number_count:
                yield Writer(OPEN, drawn | 1 << last_drawn + 1, written), 0
            if drawn != written:
                yield Writer(OPEN, drawn, drawn), 0
            if written:
                yield Writer(PREPARED, drawn, written, was_prepared=True), 0
        elif phase == ENDED:
            yield Writer(GONE), 0
        if drawn:
            ended = Writer(ENDED, was_prepared=was_prepared) if self.has_stragglers else Writer(GONE)
            yield ended, 0
            if written:
                yield ended, written


class Search(NamedTuple):
    """Every state that can be reached, with the one before it; up to the first loss, if there is one."""

    came_from: dict[World, World | None]
    loss: World | None = None

    @property
    def story(self) -> str:
        """How the loss came about."""
        worlds, world = list[World](), self.loss
        while world is not None:
            worlds.append(world)
            world = self.came_from[world]
        return "\n".join(map(repr, reversed(worlds)))


def highest(numbers: int) -> int:
    """The highest of a set, 0 if there is none."""
    return max(numbers.bit_length() - 1, 0)


def up_to(number: int) -> int:
    """The set of the numbers from 1 on."""
    return (2 << number) - 2


# The names that pg_locks has for a transaction.
def name_of(at: int, writer: Writer) -> str:
    """A prepared transaction keeps its name. Of one that has ended the number is 0 while it is listed."""
    return f"{at}/0" if writer.phase == ENDED and not writer.was_prepared else f"{at}/7"


def name_without_backend(at: int, writer: Writer) -> str:
    """A prepared transaction belongs to no backend, as after a restart of the server."""
    return f"-1/{700 + at}" if writer.was_prepared else name_of(at, writer)


def name_with_pid(at: int, writer: Writer) -> str:
    """The name together with the process, which a prepared transaction has not."""
    return f"{name_of(at, writer)}:{None if writer.was_prepared else 4000 + at}"


# The steps of readers.
def see_high(world: World) -> World:
    """The highest visible number, in a snapshot of its own."""
    return world._replace(reader=world.reader._replace(high=world.high))


def see_holders(name: Callable[[int, Writer], str]) -> Step:
    """Who holds the lock on the sequence at this moment."""

    def see(world: World) -> World:
        listed = ((at, w) for at, w in enumerate(world.writers) if w.phase in (OPEN, PREPARED, ENDED))
        return world._replace(reader=world.reader._replace(holders=tuple(name(at, w) for at, w in listed)))

    return see


def fetch(world: World) -> World:
    """Deliver what is in the open gaps and beyond the head, in a snapshot of its own."""
    reader = world.reader
    skipped = up_to(world.high) & ~up_to(reader.head)
    reader = reader._replace(head=world.high, open=(reader.open | skipped) & ~world.news)
    return world._replace(reader=reader, news=world.news & reader.given_up)


def give_up(world: World, dead: int, memory: Any) -> World:
    """Nobody looks for these numbers any more. What was seen counts no longer."""
    reader = world.reader
    dead &= reader.open
    return world._replace(
        reader=reader._replace(
            open=reader.open & ~dead, given_up=reader.given_up | dead, memory=memory, high=0, holders=()
        )
    )


def in_one(*steps: Step) -> Step:
    """Nothing happens between these."""
    return lambda world: functools.reduce(lambda reached, step: step(reached), steps, world)


def judge_by_horizon() -> Step:
    """What is settled by WriterHorizon is given up."""
    horizons: dict[str, WriterHorizon] = {}

    @functools.cache
    def observe(horizon: WriterHorizon | None, high: int, holders: tuple[str, ...]) -> WriterHorizon:
        following = WriterHorizon() if horizon is None else copy.copy(horizon)
        following.observe(WriterSample("server", high, holders))
        # Horizons that know the same are the same: without it there are many more states.
        return horizons.setdefault(repr(following.__getstate__()), following)

    def judge(world: World) -> World:
        reader = world.reader
        horizon = observe(reader.memory, reader.high, reader.holders)
        return give_up(world, up_to(horizon.settled), horizon)

    return judge
