"""Tells the end of a coroutine from a GeneratorExit that somebody raised in it."""

import asyncio


def is_closing(error: BaseException) -> bool:
    """Whether the coroutine that has just caught it is being closed; if not, what it awaited raised it."""
    # What is closed is closed from the inside out, and each coroutine gets an exit of its own: there is no
    # frame below the one where it waits.
    traceback = error.__traceback__
    return isinstance(error, GeneratorExit) and (traceback is None or traceback.tb_next is None)


def is_within(task: "asyncio.Task[object] | None") -> bool:
    """Whether the task itself asks, and not whoever takes away what is left of it.

    A future that fails with GeneratorExit closes the task that awaits it, up to its outermost coroutine.
    """
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False  # the event loop is gone
