"""What several subscribers ask of the log is read once, and nobody misses anything by that."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from postbus import InMemoryStore
from postbus.delivery.log_reader import LogReader
from postbus.delivery.patience import Patience
from postbus.events import Gap, GlobalSequence, LogPosition, WriterSample
from postbus.testing import ManualClock
from tests.contracts.steps import append, make_draft

BEGINNING = LogPosition(GlobalSequence(0))


def make_reader(store: InMemoryStore) -> tuple[LogReader, Patience]:
    clock = ManualClock()
    reader = LogReader(store.log, clock, lambda: None)
    reader.share(2)
    return reader, Patience("mail", clock, lambda: 0.0, lambda: None)


def count_reads(store: InMemoryStore) -> list[LogPosition]:
    """Where the log is read from now on, each read taking a turn of the event loop."""
    reads, real = list[LogPosition](), store.log.read

    async def read(after: LogPosition, *args: Any, **options: Any) -> Any:
        reads.append(after)
        await asyncio.sleep(0)
        return await real(after, *args, **options)

    store.log.read = read  # type: ignore[method-assign]
    return reads


async def test_those_who_ask_the_same_at_once_share_one_read() -> None:
    store = InMemoryStore()
    await append(store, make_draft())
    reads = count_reads(store)
    reader, patience = make_reader(store)
    pages = await asyncio.gather(*[reader.read(BEGINNING, 10, None, patience) for _ in range(20)])

    assert len(reads) == 1
    assert [len(page.events) for page in pages] == [1] * 20


async def test_those_who_ask_the_same_one_after_the_other_share_one_read() -> None:
    """Also whoever asks when the page is there and the others have not got it yet."""
    store = InMemoryStore()
    await append(store, make_draft())
    reads = count_reads(store)
    reader, patience = make_reader(store)
    asked = []
    # One more at each turn of the event loop.
    for _ in range(20):
        asked.append(asyncio.ensure_future(reader.read(BEGINNING, 10, None, patience)))
        await asyncio.sleep(0)
    pages = await asyncio.gather(*asked)

    assert len(reads) == 1
    assert [len(page.events) for page in pages] == [1] * 20


async def test_one_that_was_woken_does_not_get_what_was_read_before_that() -> None:
    """A read that is under way, or just over, when an event is stored has not seen it."""
    store = InMemoryStore()
    real = store.log.read
    has_read, may_answer, answers = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def read_slowly(*args: Any, **options: Any) -> Any:
        page = await real(*args, **options)
        has_read.set()
        await may_answer.wait()
        answers.set()
        return page

    store.log.read = read_slowly  # type: ignore[method-assign]
    reader, patience = make_reader(store)
    first = asyncio.ensure_future(reader.read(BEGINNING, 10, None, patience))
    await has_read.wait()
    await append(store, make_draft())

    async def ask_when_it_is_just_over() -> Any:
        await answers.wait()
        return await reader.read(BEGINNING, 10, None, patience)

    under_way = asyncio.ensure_future(reader.read(BEGINNING, 10, None, patience))
    just_over = asyncio.ensure_future(ask_when_it_is_just_over())
    await asyncio.sleep(0)
    may_answer.set()

    assert (await first).events == []
    assert len((await just_over).events) == 1
    assert len((await under_way).events) == 1


@pytest.mark.parametrize(("place_of_other", "read_count"), [(None, 1), (15, 1), (1_000, 1), (5_000, 2)])
async def test_only_those_who_are_near_each_other_share_what_is_read(
    place_of_other: int | None, read_count: int
) -> None:
    """One who has not read yet may be anywhere. Who is alone there has nothing kept."""
    store = InMemoryStore()
    await append(store, *[make_draft() for _ in range(20)])
    reader, patience = make_reader(store)
    if place_of_other is not None:
        other = Patience("stock", ManualClock(), lambda: 0.0, lambda: None)
        await reader.read(LogPosition(GlobalSequence(place_of_other)), 10, None, other, was_reached=False)
    reads = count_reads(store)
    pages = [await reader.read(BEGINNING, 10, None, patience) for _ in range(2)]

    assert len(reads) == read_count
    assert pages[0].events == pages[1].events


@pytest.mark.parametrize(
    ("event_count", "is_waiting", "sampled_at"),
    [
        (1_003, False, [0.0, 0.25, 0.5]),
        (1_002, False, [0.0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5]),
        (1_003, True, [0.0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5]),
    ],
    ids=["far behind", "near the head", "held up by the gap"],
)
async def test_whoever_is_far_behind_looks_less_often_at_the_writers(
    event_count: int, is_waiting: bool, sampled_at: list[float]
) -> None:
    """There is enough else to be done, and each look takes the server some time."""
    store, clock, samples = InMemoryStore(), ManualClock(), list[float]()
    await append(store, *[make_draft() for _ in range(event_count)])
    began_at, real = clock.monotonic(), store.log.read

    async def read(*args: Any, **options: Any) -> Any:
        if options["with_sample"]:
            samples.append(clock.monotonic() - began_at)
            sample = WriterSample(server="1", high=event_count, holders=("held",))
            return replace(await real(*args), sample=sample)
        return await real(*args)

    store.log.read = read  # type: ignore[method-assign]
    reader = LogReader(store.log, clock, lambda: None)
    after = LogPosition(GlobalSequence(2), (Gap(1, 1),))
    patience = Patience("mail", clock, lambda: 0.0, lambda: None)
    for _ in range(33):
        await reader.read(after, 10, None, patience, is_waiting=is_waiting)
        await clock.advance(0.5**6)

    assert samples == sampled_at
