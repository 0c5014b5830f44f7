"""What several subscribers ask of the log is read once, and nobody misses anything by that."""

import asyncio
from typing import Any

from postbus import InMemoryStore
from postbus.delivery.log_reader import LogReader
from postbus.delivery.patience import Patience
from postbus.events import GlobalSequence, LogPosition
from postbus.testing import ManualClock
from tests.contracts.steps import append, make_draft

BEGINNING = LogPosition(GlobalSequence(0))


def make_reader(store: InMemoryStore) -> tuple[LogReader, Patience]:
    clock = ManualClock()
    reader = LogReader(store.log, clock, lambda: None)
    reader.share(2)
    return reader, Patience("mail", clock, lambda: 0.0, lambda: None)


async def test_those_who_ask_the_same_at_once_share_one_read() -> None:
    store, count = InMemoryStore(), 0
    await append(store, make_draft())
    real = store.log.read

    async def read(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return await real(*args, **options)

    store.log.read = read  # type: ignore[method-assign]
    reader, patience = make_reader(store)
    pages = await asyncio.gather(*[reader.read(BEGINNING, 10, None, patience) for _ in range(20)])

    assert count == 1
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
