"""A PostgreSQL log in memory, and a process whose subscribers read it: all that may come between is a step.

Generators stand for tasks. Each `yield` is a place where others may go on, or where everything may end.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain

from postbus.events import Event, Gap, GlobalSequence, LogPage, LogPosition, WriterSample
from postbus.policy.gaps import SubscriberState
from postbus.policy.horizon import WriterHorizon

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
# With so many gaps open a subscriber reads nothing beyond its head.
MOST_GAPS = 3


@dataclass
class Transaction:
    """A writer, under the name that pg_locks has for it."""

    name: str
    # Locked before a number is drawn, so that a stream's numbers commit in order. None: no stream.
    stream_id: str | None
    events: list[Event] = field(default_factory=list)
    is_prepared: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and for the test what had been delivered when it was written."""

    position: int
    head: int
    open: tuple[Gap, ...]
    delivered: frozenset[str]


@dataclass(frozen=True)
class Contents:
    """What a crash leaves: everything up to some moment."""

    last_drawn: int
    events: dict[int, Event]
    prepared: list[Transaction]
    checkpoints: dict[str, Saved]


class SimulatedDatabase:
    """One server: transactions that draw numbers, and what of them is visible."""

    def __init__(self, *, is_renaming: bool) -> None:
        self.server = "start 0"
        # Whether a transaction loses its name already when it is prepared, and not only in a crash.
        self._is_renaming = is_renaming
        self._count = 0
        self.last_drawn = 0
        self.events: dict[int, Event] = {}
        self.writers: list[Transaction] = []
        self.checkpoints: dict[str, Saved] = {}
        self._flush()

    def begin(self, stream_id: str | None) -> Transaction | None:
        """A new writer, if nobody else is writing to its stream."""
        if stream_id is not None and any(writer.stream_id == stream_id for writer in self.writers):
            return None
        self._count += 1
        self.writers.append(Transaction(f"{self._count % 3}/{self._count}", stream_id))
        return self.writers[-1]

    def draw(self, writer: Transaction) -> None:
        """Take the next number for an event that nobody sees yet."""
        if writer.is_prepared:
            return
        self._count += 1
        self.last_drawn += 1
        writer.events.append(
            Event(
                id=f"event {self._count}",
                type=("odd", "even")[self._count % 2],
                created_at=_EPOCH,
                stream_id=writer.stream_id,
                global_sequence=GlobalSequence(self.last_drawn),
            )
        )

    def prepare(self, writer: Transaction) -> None:
        """From now on it outlives its session and its server."""
        writer.is_prepared = True
        if self._is_renaming:
            writer.name = _without_backend(writer.name)
        self._flush()

    def end(self, writer: Transaction, *, is_commit: bool, is_durable: bool = True) -> None:
        """Make its events visible, or its numbers dead."""
        self.writers.remove(writer)
        if is_commit:
            self.events.update({number_of(event): event for event in writer.events})
        if is_durable or writer.is_prepared:
            self._flush()

    def save(self, subscriber_id: str, saved: Saved, *, is_durable: bool) -> None:
        """Write a checkpoint, which makes everything before it durable as well."""
        self.checkpoints[subscriber_id] = saved
        if is_durable:
            self._flush()

    def crash(self, *, is_renamed: bool) -> None:
        """Come back with what was durable: numbers are handed out a second time."""
        self._count += 1
        if is_renamed:
            self.server = f"start {self._count}"
        durable = self._durable
        self.last_drawn, self.events = durable.last_drawn, durable.events.copy()
        self.checkpoints = durable.checkpoints.copy()
        self.writers = [replace(writer, name=_without_backend(writer.name)) for writer in durable.prepared]

    def read(
        self, after: LogPosition, limit: int, wanted: str | None, most_in_gaps: int, *, with_sample: bool
    ) -> Generator[None, None, LogPage]:
        """As EventLog.read."""
        sample = None
        if with_sample:
            high = max(self.events, default=0)
            yield
            sample = WriterSample(self.server, high, tuple(writer.name for writer in self.writers))
        yield
        page = self._page(after, limit, wanted, most_in_gaps, sample)
        yield
        return page

    def _page(
        self,
        after: LogPosition,
        limit: int,
        wanted: str | None,
        most_in_gaps: int,
        sample: WriterSample | None,
    ) -> LogPage:
        wanted_numbers = {n for n, event in self.events.items() if wanted in (None, event.type)}
        missed = chain.from_iterable(range(gap.first, gap.last + 1) for gap in after.open)
        in_gaps = [number for number in missed if number in wanted_numbers]
        # What is not wanted stays in its gap, so it must not count: the rest would never be reached.
        is_cut = len(in_gaps) > most_in_gaps
        beyond = [] if is_cut else sorted(number for number in self.events if number > after.head)[:limit]
        return LogPage(
            events=[self.events[n] for n in in_gaps[:most_in_gaps] + beyond if n in wanted_numbers],
            up_to=GlobalSequence(beyond[-1]) if beyond else after.head,
            missing=tuple(
                Gap(before + 1, number - 1)
                for before, number in zip([after.head, *beyond], beyond, strict=False)
                if number > before + 1
            ),
            server=self.server,
            sample=sample,
            is_cut=is_cut,
        )

    def _flush(self) -> None:
        prepared = [writer for writer in self.writers if writer.is_prepared]
        self._durable = Contents(self.last_drawn, self.events.copy(), prepared, self.checkpoints.copy())


class SimulatedProcess:
    """One process: its subscribers share what is known of the writers."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self.database = database
        self.horizon = WriterHorizon()
        self._is_sampling = False

    def reconnect(self, *, is_noticed: bool) -> None:
        """Whatever was on its way is gone; behind a pooler nobody notices more than that."""
        self._is_sampling = False
        if is_noticed:
            self.horizon.forget()

    def read(
        self, after: LogPosition, limit: int, wanted: str | None, most_in_gaps: int
    ) -> Generator[None, None, tuple[LogPage, int]]:
        """A page, and the number up to which what it does not show is dead."""
        # Only what was settled before the page was read says anything about the page.
        settled, server = self.horizon.settled, self.horizon.server
        # One at a time: samples count in the order in which they were taken.
        with_sample = bool(after.open) and not self._is_sampling
        self._is_sampling |= with_sample
        page = yield from self.database.read(after, limit, wanted, most_in_gaps, with_sample=with_sample)
        if page.sample is not None:
            self._is_sampling = False
            settled = self.horizon.observe(page.sample)
        elif page.server != server:
            settled = GlobalSequence(0)
        return page, 0 if page.is_cut else settled


@dataclass
class SimulatedSubscriber:
    """Reads, delivers in order, settles, saves; and remembers for the test what it delivered."""

    subscriber_id: str
    process: SimulatedProcess
    wanted: str | None
    limit: int
    most_in_gaps: int
    is_durable: bool
    delivered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start(self.process)

    def start(self, process: SimulatedProcess) -> None:
        """Begin a life from what is saved: an event that is known there must not come again."""
        self.process = process
        saved = process.database.checkpoints.get(self.subscriber_id, Saved(0, 0, (), frozenset()))
        self.state = SubscriberState.restore(saved.position, saved.head, saved.open)
        self._known = set(saved.delivered)
        self._last_in_stream: dict[str, int] = {}
        self.is_interrupted = False
        self.task = self._run()

    def _run(self) -> Iterator[None]:
        while True:
            limit = 0 if len(self.state.open) >= MOST_GAPS else self.limit
            page, settled = yield from self.process.read(
                self.state.position, limit, self.wanted, self.most_in_gaps
            )
            self.is_interrupted = False
            yield from self._deliver(page, settled)
            self._save()
            yield

    def _deliver(self, page: LogPage, settled: int) -> Iterator[None]:
        for event in page.events:
            yield
            # What is left of the page is read again: nothing may be settled by what was not delivered.
            if self.is_interrupted:
                return
            self._handle(event)
            self._pass_to(number_of(event), page.missing)
            if number_of(event) % 3 == 0:
                yield
                self._save()
        self._pass_to(page.up_to, page.missing)
        self.state.settle(settled)

    def _pass_to(self, number: int, missing: tuple[Gap, ...]) -> None:
        if number > self.state.head:
            self.state.pass_to(number, [gap for gap in missing if self.state.head < gap.last < number])
        else:
            self.state.deliver(number)

    def _handle(self, event: Event) -> None:
        assert event.id not in self._known, f"{event.id} came again, and nobody crashed"
        if event.stream_id is not None:
            last = self._last_in_stream.get(event.stream_id, 0)
            assert number_of(event) > last, f"{event.id} came after {last} of {event.stream_id}"
            self._last_in_stream[event.stream_id] = number_of(event)
        self._known.add(event.id)
        self.delivered.add(event.id)

    def _save(self) -> None:
        state = self.state
        saved = Saved(state.contiguous, state.head, state.open, frozenset(self._known))
        self.process.database.save(self.subscriber_id, saved, is_durable=self.is_durable)


def _without_backend(name: str) -> str:
    return f"-1/{name.partition('/')[2]}"


def number_of(event: Event) -> int:
    """The number of an event that has one."""
    assert event.global_sequence is not None, "it is stored"
    return event.global_sequence
