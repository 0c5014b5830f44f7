"""Threads ring, the event loop answers: nobody rings in vain."""

import asyncio
import contextvars
import errno
import functools
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from postbus.doorbell import Doorbell

_request: contextvars.ContextVar[str] = contextvars.ContextVar("request")


def _refuse(*_: object) -> int:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.fixture(params=["counter", "no counter", "no file"])
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every system has such a counter, and it is a file of which there can be too many."""
    if request.param == "no counter":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif request.param == "no file":
        monkeypatch.setattr(os, "eventfd", _refuse)


pytestmark = pytest.mark.usefixtures("_system")


def _in_thread(run: Callable[[], object]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


async def test_calls_come_in_order_into_the_loop_without_task_or_context() -> None:
    """As from call_soon_threadsafe(): whoever has made the doorbell leaves no trace in them."""
    _request.set("whoever opened the store")
    bell, found, done = Doorbell(asyncio.get_running_loop()), [], asyncio.Event()

    def note(number: int) -> None:
        found.append((number, threading.current_thread(), asyncio.current_task(), _request.get("nothing")))
        _request.set("the call before")

    def ring(number: int) -> None:
        bell.ring(note, number)
        bell.ring(done.set)

    for number in range(3):
        done.clear()
        _in_thread(functools.partial(ring, number))
        await done.wait()
    bell.take_down()

    assert found == [(number, threading.main_thread(), None, "nothing") for number in range(3)]


async def test_many_threads_ring_and_every_call_comes_once() -> None:
    """Also those who ring while the loop is answering."""
    bell, found, done = Doorbell(asyncio.get_running_loop()), [], asyncio.Event()

    def note(number: int) -> None:
        found.append(number)
        if len(found) == 4_000:
            done.set()

    def ring(first: int) -> None:
        for number in range(first, first + 1_000):
            bell.ring(note, number)

    threads = [threading.Thread(target=ring, args=(first,)) for first in range(0, 4_000, 1_000)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(30):
        await done.wait()
    bell.take_down()

    assert sorted(found) == list(range(4_000))


async def test_an_error_in_one_call_does_not_keep_the_others_from_coming() -> None:
    """The loop reports it, as any error of a callback."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, report: reported.append(report.get("exception")))
    bell, error = Doorbell(loop), RuntimeError("a handler's")

    def fail() -> None:
        raise error

    def ring() -> None:
        bell.ring(fail)
        bell.ring(done.set)

    _in_thread(ring)
    async with asyncio.timeout(30):
        await done.wait()
    bell.take_down()

    assert reported == [error]


async def test_who_rang_before_it_is_taken_down_is_answered_and_who_rings_later_too(
    request: pytest.FixtureRequest,
) -> None:
    """The store closes while its threads may still have something to say."""
    bell, done = Doorbell(asyncio.get_running_loop()), asyncio.Event()
    found: list[str] = []
    _in_thread(lambda: bell.ring(found.append, "before"))
    bell.take_down()
    bell.take_down()
    if "counter]" in request.node.name and "no " not in request.node.name:
        # Without one the loop knows of it already, and answers in its next turn.
        assert found == ["before"]
    _in_thread(lambda: bell.ring(done.set))
    async with asyncio.timeout(30):
        await done.wait()

    assert found == ["before"]


def test_a_closed_loop_is_rung_in_vain_and_nothing_stays_open() -> None:
    """A program may end its loop without closing its store."""

    async def make() -> Doorbell:
        return Doorbell(asyncio.get_running_loop())

    def ring() -> None:
        bell = asyncio.run(make())
        _in_thread(lambda: bell.ring(print, "never"))

    before = _count_open_files()
    ring()
    gc.collect()

    assert _count_open_files() == before


def test_taken_down_after_its_loop_was_closed_it_calls_nobody() -> None:
    """A bus may be shut down in another loop when its own is gone."""
    found: list[str] = []

    async def make() -> Doorbell:
        bell, loop = Doorbell(asyncio.get_running_loop()), asyncio.get_running_loop()
        # In the last turn of the loop, which has no other in which it could answer.
        loop.call_soon(lambda: _in_thread(lambda: bell.ring(found.append, "too late")))
        return bell

    loop = asyncio.new_event_loop()
    bell = loop.run_until_complete(make())
    loop.close()
    bell.take_down()

    assert found == []


def _count_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))
