"""PromptFuture: what a task waits for need not take a turn of the event loop."""

import asyncio
import gc
import weakref

import pytest

from postbus.delivery.prompt_future import PromptFuture


def _new() -> PromptFuture:
    return PromptFuture(asyncio.get_running_loop())


async def _wait(future: PromptFuture, log: list[str]) -> None:
    await future
    task = asyncio.current_task()
    log.append(task.get_name() if task else "nobody")


async def _outside_of_tasks(call: object) -> None:
    """Run it as the event loop runs a callback."""
    done = asyncio.get_running_loop().create_future()

    def run() -> None:
        call()  # type: ignore[operator]
        done.set_result(None)

    asyncio.get_running_loop().call_soon(run)
    await done


async def test_the_waiter_goes_on_before_the_call_returns() -> None:
    """In its own task."""
    future, log = _new(), list[str]()
    task = asyncio.create_task(_wait(future, log), name="waiter")
    await asyncio.sleep(0)

    def finish() -> None:
        future.finish_at_once()
        log.append("returned")

    await _outside_of_tasks(finish)
    await task

    assert log == ["waiter", "returned"]


async def test_one_that_nobody_waits_for_yet_is_done_all_the_same() -> None:
    """Whoever comes later does not wait."""
    future = _new()
    await _outside_of_tasks(future.finish_at_once)

    assert future.done()
    async with asyncio.timeout(10):
        await future


async def test_it_can_be_finished_within_a_task() -> None:
    """The waiter goes on in the next turn of the event loop."""
    future, log = _new(), list[str]()
    task = asyncio.create_task(_wait(future, log), name="waiter")
    await asyncio.sleep(0)
    future.finish()
    assert log == []
    await task

    assert log == ["waiter"]


@pytest.mark.parametrize("is_awaited", [True, False], ids=["awaited", "not awaited yet"])
async def test_its_error_is_raised_where_it_is_awaited(is_awaited: bool) -> None:
    future = _new()
    task = asyncio.create_task(_wait(future, []))
    if is_awaited:
        await asyncio.sleep(0)
    future.finish(ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        await task


async def test_an_error_of_many_does_not_collect_the_ways_to_all_of_them() -> None:
    """Each sees where it was raised, and its own way to it."""
    try:
        raise ValueError("full")
    except ValueError as raised:
        error = raised
    futures, depths = [_new() for _ in range(20)], list[int]()
    for future in futures:
        future.finish(error)
    for future in futures:
        with pytest.raises(ValueError, match="full") as caught:
            await future
        depths.append(len(caught.traceback))

    assert max(depths) == depths[0] < 5


class _RefusedError(Exception):
    """Unlike those of the language, it can be looked for."""


async def test_an_error_is_free_as_soon_as_nobody_has_it() -> None:
    """No cycle keeps it, and all that is in its frames, until the garbage collector comes."""
    future, alive = _new(), weakref.WeakSet[_RefusedError]()
    alive.add(error := _RefusedError())
    future.finish(error)
    gc.disable()
    try:
        try:
            await future
        except _RefusedError:
            del error
        del future
        assert len(alive) == 0
    finally:
        gc.enable()


async def test_only_the_first_end_counts() -> None:
    """And wakes the waiter once."""
    future, log = _new(), list[str]()
    task = asyncio.create_task(_wait(future, log), name="waiter")
    await asyncio.sleep(0)
    future.finish()
    future.finish(ValueError("too late"))
    await _outside_of_tasks(future.finish_at_once)
    await task

    assert log == ["waiter"]


async def test_a_waiter_can_be_cancelled() -> None:
    """It is told at once, and with the reason; what comes to its end later changes nothing."""
    future = _new()
    task = asyncio.create_task(_wait(future, []))
    await asyncio.sleep(0)
    task.cancel("enough")
    future.finish(ValueError("too late"))

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert future.done()


async def test_a_waiter_that_is_cancelled_at_the_last_moment_is_told() -> None:
    """Just when it was to go on."""
    future, log = _new(), list[str]()
    task = asyncio.create_task(_wait(future, log))
    await asyncio.sleep(0)
    future.finish()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == []


async def test_it_is_a_future_for_tasks_of_python_as_well() -> None:
    """Those of the interpreter's library, where the ones in C can't be had."""
    future, log = _new(), list[str]()
    for end in (future.finish, None):
        future = future if end else _new()
        task = asyncio.tasks._PyTask(_wait(future, log), loop=asyncio.get_running_loop(), name="waiter")  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        if end is None:
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError, match="enough"):
                await task
        else:
            end()
            await task

    assert log == ["waiter"]
