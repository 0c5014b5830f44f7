"""PromptFuture: a future that need not take a turn of the event loop."""

import asyncio

import pytest

from postbus.delivery.prompt_future import PromptFuture


def _new() -> PromptFuture:
    return PromptFuture(loop=asyncio.get_running_loop())


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

    await asyncio.wait_for(future, 10)


async def test_a_waiter_can_be_cancelled() -> None:
    """As with every future."""
    future = _new()
    task = asyncio.create_task(_wait(future, []))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert future.cancelled()


async def test_it_can_be_finished_as_every_future() -> None:
    """In the next turn of the event loop."""
    future, log = _new(), list[str]()
    task = asyncio.create_task(_wait(future, log), name="waiter")
    await asyncio.sleep(0)
    future.set_result(None)
    assert log == []
    await task

    assert log == ["waiter"]
