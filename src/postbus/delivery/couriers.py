"""Tasks that carry deliveries, each one after another for as long as no handler makes it wait.

A task for every event costs as much as everything else that a quick handler needs.
A courier goes on to the next delivery at once, and when one has to wait it sees to it that
another courier takes over: nobody queues behind a slow handler.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from postbus.delivery.attempts import AbandonedError, GivenBackError
from postbus.delivery.prompt_future import PromptFuture

logger = logging.getLogger("postbus")

# Couriers that wait for work; more than these go home.
_MOST_IDLE = 64
# So many deliveries at a stretch, then the event loop has its turn.
_MOST_AT_A_STRETCH = 128


class Delivery(Protocol):
    """Something to be carried."""

    def run(self) -> "Coroutine[Any, Any, Delivery | None] | None":
        """Do it as far as it comes without waiting, within a task; None: that was all.

        What is left of it is awaited at once, and returns what is left to do then, if anything.
        """
        ...


class Couriers:
    """Carries deliveries, begun in the order of their coming."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._idle: list[PromptFuture] = []
        self._is_one_coming = False
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def carry(
        self, delivery: Delivery, context: contextvars.Context, *, begins_at_once: bool = False
    ) -> None:
        """Begin soon. The handlers see the context variables of *context*.

        Outside of tasks it can begin at once, if a courier waits for work.
        """
        if context:
            # A task has one context, so this one gets a task of its own.
            self._employ(self._carry_one(delivery), context)
            return
        self._waiting.append(delivery)
        if not self._is_one_coming:
            self._call_one(begins_at_once)

    async def cancel_all(self) -> None:
        """Cut off everything; a handler that will not be cancelled is left behind after a second."""
        self._is_over = True
        # What has not begun is left to whoever gave it.
        self._waiting.clear()
        # Not the current one: a handler may be the one who shuts the bus down.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _call_one(self, comes_at_once: bool = False) -> None:
        self._is_one_coming = True
        while self._idle:
            call = self._idle.pop()
            if not call.done():
                if comes_at_once:
                    call.finish_at_once()
                else:
                    call.set_result(None)
                return
        # Without the context of whoever happens to call: the courier serves others too.
        self._employ(self._serve(), contextvars.Context())

    def _employ(self, work: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        # Not by the loop's factory: with asyncio.eager_task_factory each courier would begin within the
        # one before it, the last delivery first, until there is no room left on the stack.
        loop = asyncio.get_running_loop()
        self._tasks.add(asyncio.Task(work, loop=loop, name="postbus courier", context=context))

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._is_one_coming = False
                await self._carry_waiting()
                # The courier whose handler has shut the bus down was not cancelled: nobody will call it.
                if self._is_over or len(self._idle) >= _MOST_IDLE or contextvars.copy_context():
                    if self._waiting and not self._is_one_coming:
                        self._call_one()
                    return
                call = PromptFuture(loop=loop)
                self._idle.append(call)
                await call
        except BaseException as error:
            # It is cut off, or a handler has ended it: what it has not begun is for another one, unless the
            # event loop is gone.
            if self._waiting and not self._is_one_coming and not isinstance(error, GeneratorExit):
                self._call_one()
            raise
        finally:
            self._tasks.discard(asyncio.current_task())

    async def _carry_waiting(self) -> None:
        carried = 0
        while self._waiting:
            if carried == _MOST_AT_A_STRETCH:
                carried = 0
                await asyncio.sleep(0)
                continue
            carried += 1
            delivery = self._waiting.popleft()
            try:
                rest = delivery.run()
                if rest is not None:
                    if self._waiting and not self._is_one_coming:
                        self._call_one()
                    await _see_through(rest)
            except Exception as error:
                _report(error)
            if contextvars.copy_context():
                # What a handler changed in its context is not for the next one: that takes a new courier.
                return

    async def _carry_one(self, delivery: Delivery) -> None:
        try:
            rest = delivery.run()
            if rest is not None:
                await _see_through(rest)
        except Exception as error:
            _report(error)
        finally:
            self._tasks.discard(asyncio.current_task())


async def _see_through(rest: "Coroutine[Any, Any, Delivery | None]") -> None:
    delivery = await rest
    while delivery is not None and (further := delivery.run()) is not None:
        delivery = await further


def _report(error: Exception) -> None:
    """Say what happened to one delivery; the others go on."""
    if isinstance(error, GivenBackError):
        logger.debug("a handler ended whose event a shutdown has put back to pending")
    elif isinstance(error, AbandonedError):
        logger.warning("a handler ended that was given up before")
    else:
        logger.error("a delivery ended with an error that postbus did not expect", exc_info=error)
