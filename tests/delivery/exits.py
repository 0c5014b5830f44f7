"""Handlers that raise GeneratorExit, which is how a coroutine learns that it is being closed."""

import asyncio
from collections.abc import Callable

from postbus import Event


def exit_at_once() -> None:
    """Raise what a coroutine gets when it is closed."""
    raise GeneratorExit


async def exit_later() -> None:
    """The same after it has waited."""
    await asyncio.sleep(0)
    raise GeneratorExit


async def raise_at_once(_: Event) -> None:
    """Before it has waited."""
    exit_at_once()


async def raise_later(_: Event) -> None:
    """After it has waited."""
    await exit_later()


async def wait_for_a_task(_: Event) -> None:
    """What is awaited closes the whole task."""
    await asyncio.ensure_future(exit_later())


async def wait_for_a_thread(_: Event) -> None:
    """As if a task was awaited."""
    await asyncio.to_thread(exit_at_once)


def raise_in_a_thread(_: Event) -> None:
    """A plain function."""
    exit_at_once()


def hand_back_a_coroutine(_: Event) -> object:
    """A plain function around an async one."""
    return exit_later()


EXITS_OF_ITS_OWN: dict[str, tuple[Callable[[Event], object], str]] = {
    "before it waits": (raise_at_once, "GeneratorExit"),
    "after it has waited": (raise_later, "GeneratorExit"),
    "in a plain function": (raise_in_a_thread, "RuntimeError: handler raised GeneratorExit()"),
    "in the coroutine of a plain function": (hand_back_a_coroutine, "GeneratorExit"),
}
EXITS: dict[str, tuple[Callable[[Event], object], str]] = {
    **EXITS_OF_ITS_OWN,
    "in a task that it waits for": (wait_for_a_task, "GeneratorExit"),
    "in a thread that it waits for": (wait_for_a_thread, "GeneratorExit"),
}
