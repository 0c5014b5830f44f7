"""A reader made of WriterHorizon and SubscriberState loses nothing, whatever comes between its steps."""

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.events import Gap, GlobalSequence, LogPosition
from tests.policy.log_simulation import (
    SimulatedDatabase,
    SimulatedProcess,
    SimulatedSubscriber,
    Transaction,
    number_of,
)

Result = TypeVar("Result")


class Simulation:
    """Writers that end in any order, two processes with three subscribers, and all of them may crash.

    The subscribers themselves assert on each delivery that it is no duplicate, unless it follows a crash
    and was not saved, and that within a stream the numbers go up. A *die* picks one of several.
    """

    def __init__(self, *, is_renaming: bool, limit: int, most_in_gaps: int) -> None:
        self.database = SimulatedDatabase(is_renaming=is_renaming)
        process, other = SimulatedProcess(self.database), SimulatedProcess(self.database)
        self.subscribers = [
            SimulatedSubscriber("all", process, None, limit, most_in_gaps, is_durable=True),
            SimulatedSubscriber("odd", process, "odd", 4, 4, is_durable=False),
            SimulatedSubscriber("elsewhere", other, None, 4, most_in_gaps, is_durable=True),
        ]

    def begin(self, die: int) -> None:
        writer = self.database.begin(("a", "b", None)[die % 3])
        if writer is not None:
            self.database.draw(writer)

    def publish(self, die: int) -> None:
        """Most writers are quick."""
        writer = self.database.begin(("a", "b", None)[die % 3])
        if writer is not None:
            self.database.draw(writer)
            self.database.end(writer, is_commit=True, is_durable=die % 2 == 0)

    def draw(self, die: int) -> None:
        if writer := self._pick_writer(die):
            self.database.draw(writer)

    def prepare(self, die: int) -> None:
        if writer := self._pick_writer(die):
            self.database.prepare(writer)

    def commit(self, die: int) -> None:
        if writer := self._pick_writer(die):
            self.database.end(writer, is_commit=True, is_durable=die % 2 == 0)

    def roll_back(self, die: int) -> None:
        if writer := self._pick_writer(die):
            self.database.end(writer, is_commit=False)

    def go_on(self, die: int) -> None:
        next(self._pick_subscriber(die).task)

    def go_on_for_long(self, die: int) -> None:
        for _ in range(10):
            next(self._pick_subscriber(die).task)

    def interrupt(self, die: int) -> None:
        self._pick_subscriber(die).is_interrupted = True

    def kill_process(self, die: int) -> None:
        process = SimulatedProcess(self.database)
        for subscriber in self.subscribers[:2]:
            subscriber.start(process)

    def crash_server(self, die: int) -> None:
        """Under a new name it is known by that, under its old one only by the loss of the connection."""
        is_renamed = die % 2 == 0
        self.database.crash(is_renamed=is_renamed)
        for subscriber in self.subscribers:
            subscriber.process.reconnect(is_noticed=not is_renamed)
            subscriber.start(subscriber.process)

    def check(self) -> None:
        """Nobody can use a number that is settled, and what a subscriber has passed it has delivered."""
        unseen = [number_of(event) for writer in self.database.writers for event in writer.events]
        for subscriber in self.subscribers:
            settled = subscriber.process.horizon.settled_on(self.database.server)
            assert min([*unseen, self.database.last_drawn + 1]) > settled
            for number, event in self.database.events.items():
                if subscriber.wanted in (None, event.type) and subscriber.state.is_delivered(number):
                    assert event.id in subscriber.delivered, f"{subscriber.subscriber_id} lost {event.id}"

    def finish(self) -> None:
        """Once nobody writes any more, everything is delivered and no gap is left."""
        for at, writer in enumerate(self.database.writers[:]):
            self.database.end(writer, is_commit=at % 2 == 0)
        head = max(self.database.events, default=0)
        for _ in range(60 + 10 * len(self.database.events)):
            for subscriber in self.subscribers:
                next(subscriber.task)
        for subscriber in self.subscribers:
            assert (subscriber.state.contiguous, subscriber.state.head) == (head, head)
        self.check()

    def _pick_writer(self, die: int) -> Transaction | None:
        return self.database.writers[die % len(self.database.writers)] if self.database.writers else None

    def _pick_subscriber(self, die: int) -> SimulatedSubscriber:
        return self.subscribers[die % 3]


# How often each comes up. After a crash it takes a while until there is something to lose again.
ACTIONS = [
    *[Simulation.begin] * 5,
    *[Simulation.publish] * 5,
    *[Simulation.draw] * 2,
    *[Simulation.commit] * 4,
    *[Simulation.roll_back] * 2,
    *[Simulation.prepare] * 2,
    *[Simulation.go_on] * 16,
    *[Simulation.go_on_for_long] * 6,
    Simulation.interrupt,
    Simulation.kill_process,
    Simulation.crash_server,
]


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), min_size=60, max_size=150),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_a_reader_loses_nothing_and_passes_every_dead_gap(
    actions: list[tuple[Callable[[Simulation, int], None], int]],
    is_renaming: bool,
    limit: int,
    most_in_gaps: int,
) -> None:
    """In any order of writes, reads, crashes; in order within a stream, and twice only after a crash."""
    simulation = Simulation(is_renaming=is_renaming, limit=limit, most_in_gaps=most_in_gaps)
    for act, die in actions:
        act(simulation, die)
        simulation.check()
    simulation.finish()


class TestBetweenTheSteps:
    """What chance seldom brings about."""

    def test_what_is_settled_while_a_page_is_on_its_way_does_not_count_for_it(self) -> None:
        """The page was read before the number became visible, and the sample was taken after."""
        database = SimulatedDatabase(is_renaming=False)
        slow = publish_beyond_a_gap(database)
        process = SimulatedProcess(database)
        position = LogPosition(GlobalSequence(2), (Gap(1, 1),))
        sampled, unsampled = (process.read(position, 9, None, 9) for _ in range(2))
        next(sampled)
        advance(unsampled, 2)
        database.end(slow, is_commit=True)
        sampled_page, settled_by_sample = run_to_its_end(sampled)
        late_page, settled_before = run_to_its_end(unsampled)

        assert (len(sampled_page.events), settled_by_sample, process.horizon.settled) == (1, 2, 2)
        assert (len(late_page.events), settled_before) == (0, 0)

    def test_what_is_settled_on_one_server_does_not_count_for_the_page_of_another(self) -> None:
        """A pooler may send the read elsewhere, where the number is still open."""
        database = SimulatedDatabase(is_renaming=False)
        database.end(publish_beyond_a_gap(database), is_commit=False, is_durable=False)
        process = SimulatedProcess(database)
        position = LogPosition(GlobalSequence(2), (Gap(1, 1),))
        run_to_its_end(process.read(position, 9, None, 9))
        assert process.horizon.settled == 2

        reading = process.read(LogPosition(GlobalSequence(0)), 9, None, 9)
        next(reading)
        database.crash(is_renamed=True)
        publish_beyond_a_gap(database)
        page, settled = run_to_its_end(reading)

        assert (page.missing, settled) == ((Gap(1, 1),), 0)

    def test_unwanted_events_in_a_gap_hold_up_nobody(self) -> None:
        """They stay in it, and it is settled with the rest."""
        database = SimulatedDatabase(is_renaming=False)
        slow = database.begin(None)
        assert slow is not None
        for _ in range(8):
            database.draw(slow)
        publish(database)
        subscriber = SimulatedSubscriber("odd", SimulatedProcess(database), "odd", 5, 1, is_durable=True)
        advance(subscriber.task, 20)
        assert subscriber.state.open == (Gap(1, 8),)

        database.end(slow, is_commit=True)
        advance(subscriber.task, 60)

        assert subscriber.state.contiguous == 9
        assert len(subscriber.delivered) == len([e for e in database.events.values() if e.type == "odd"])


def publish(database: SimulatedDatabase) -> None:
    """One event by a quick writer."""
    writer = database.begin(None)
    assert writer is not None, "it needs no lock on a stream"
    database.draw(writer)
    database.end(writer, is_commit=True, is_durable=False)


def publish_beyond_a_gap(database: SimulatedDatabase) -> Transaction:
    """One writer draws a number, and another publishes the next; the first one."""
    slow = database.begin(None)
    assert slow is not None, "it needs no lock on a stream"
    database.draw(slow)
    publish(database)
    return slow


def advance(task: Iterator[None], step_count: int) -> None:
    """Let it take so many steps."""
    for _ in range(step_count):
        next(task)


def run_to_its_end(reading: Generator[None, None, Result]) -> Result:
    """What it returns."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: Result = end.value
            return result
