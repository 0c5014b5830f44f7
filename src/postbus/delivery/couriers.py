"""Tasks that carry deliveries, each one after another for as long as no handler makes it wait.

A task for every event costs as much as everything else that a quick handler needs.
A courier goes on to the next delivery at once, and when one has to wait it sees to it that
another courier takes over: nobody queues behind a slow handler.
"""

import asyncio
import contextvars
import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from postbus.delivery.attempts import AbandonedError, GivenBackError
from postbus.delivery.prompt_future import PromptFuture

logger = logging.getLogger("postbus")

# Couriers that wait for work; more than these go home.
_MOST_IDLE = 64
# So many deliveries at a stretch, then the event loop has its turn.
_MOST_AT_A_STRETCH = 128
# Before a delivery that was cancelled from outside goes again: asyncio.run() cancels everything at its end,
# where no handler should begin any more.
_SECONDS_BEFORE_ANOTHER_GO = 1.0


class Delivery(Protocol):
    """Something to be carried."""

    def run(self) -> "Coroutine[Any, Any, Delivery | None] | None":
        """Do it as far as it comes without waiting, within a task; None: that was all.

        What is left of it is awaited at once, and returns what is left to do then, if anything. If that is
        cancelled from outside, it is run again later.
        """
        ...


class Couriers:
    """Carries deliveries, begun in the order of their coming."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._idle: list[PromptFuture] = []
        # Who was called and has not begun yet: the call of one that was idle, or the task of a new one.
        self._coming: PromptFuture | asyncio.Task[None] | None = None
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut_off_count = 0

    def carry(
        self, delivery: Delivery, context: contextvars.Context, *, begins_at_once: bool = False
    ) -> None:
        """Begin soon. The handlers see the context variables of *context*.

        Outside of tasks it can begin at once, if a courier waits for work.
        """
        if context:
            # A task has one context, so this one gets a task of its own.
            not_begun = [delivery]
            see_off = functools.partial(self._see_off_single, not_begun, context)
            self._employ(self._carry_one(not_begun, context.copy()), context, see_off)
            return
        self._waiting.append(delivery)
        if self._coming is None:
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
        while self._idle:
            call = self._idle.pop()
            if not call.done():
                self._coming = call
                if comes_at_once:
                    call.finish_at_once()
                else:
                    call.finish()
                return
        # Without the context of whoever happens to call: the courier serves others too.
        self._coming = self._employ(self._serve(), contextvars.Context(), self._see_off)

    def _employ(
        self,
        work: Coroutine[Any, Any, None],
        context: contextvars.Context,
        see_off: "Callable[[asyncio.Task[None]], None]",
    ) -> "asyncio.Task[None]":
        # Not by the loop's factory: with asyncio.eager_task_factory each courier would begin within the
        # one before it, the last delivery first, until there is no room left on the stack.
        loop = asyncio.get_running_loop()
        task = asyncio.Task(work, loop=loop, name="postbus courier", context=context)
        self._tasks.add(task)
        # Whoever is cancelled before its first step does nothing by itself, not even in a finally.
        task.add_done_callback(see_off)
        return task

    def _see_off(self, task: "asyncio.Task[None]") -> None:
        """It has gone home, or was cut off: what it has not begun is for another one."""
        self._tasks.discard(task)
        self._expect_no_more(task)
        if self._waiting and self._coming is None and not self._is_over:
            self._call_one()

    def _expect_no_more(self, called: "PromptFuture | asyncio.Task[None]") -> None:
        if self._coming is called:
            self._coming = None

    def _see_off_single(
        self, not_begun: list[Delivery], context: contextvars.Context, task: "asyncio.Task[None]"
    ) -> None:
        self._tasks.discard(task)
        if not_begun:
            self._go_again(not_begun.pop(), context)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._coming = None
            await self._carry_waiting()
            # The courier whose handler has shut the bus down was not cancelled: nobody will call it.
            if self._is_over or len(self._idle) >= _MOST_IDLE or contextvars.copy_context():
                if self._waiting and self._coming is None:
                    self._call_one()
                return
            call = PromptFuture(loop)
            self._idle.append(call)
            try:
                await call
            except asyncio.CancelledError:
                # Perhaps it was called, and cut off before it could hear that.
                self._expect_no_more(call)
                raise

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
                    if self._waiting and self._coming is None:
                        self._call_one()
                    await self._see_through(delivery, rest, contextvars.Context())
            except Exception as error:
                _report(error)
            if contextvars.copy_context():
                # What a handler changed in its context is not for the next one: that takes a new courier.
                return

    async def _carry_one(self, not_begun: list[Delivery], context: contextvars.Context) -> None:
        delivery = not_begun.pop()
        try:
            rest = delivery.run()
            if rest is not None:
                await self._see_through(delivery, rest, context)
        except Exception as error:
            _report(error)

    async def _see_through(
        self, delivery: Delivery, rest: "Coroutine[Any, Any, Delivery | None]", context: contextvars.Context
    ) -> None:
        """To its end; what is cut off from outside goes again, the delivery itself with *context*."""
        is_first = True
        try:
            following = await rest
            while following is not None:
                delivery, is_first = following, False
                if (further := delivery.run()) is None:
                    return
                following = await further
        except asyncio.CancelledError:
            # What is left to do would have gone on in the context of this task.
            self._go_again(delivery, context if is_first else contextvars.copy_context())
            raise

    def _go_again(self, delivery: Delivery, context: contextvars.Context) -> None:
        """A program that cancels all tasks, say, has cut it off; not we ourselves."""
        if self._is_over:
            return
        if not self._cut_off_count:
            logger.warning("deliveries were cancelled from outside; they start again")
        self._cut_off_count += 1
        loop = asyncio.get_running_loop()
        loop.call_later(_SECONDS_BEFORE_ANOTHER_GO, self._carry_again, delivery, context)

    def _carry_again(self, delivery: Delivery, context: contextvars.Context) -> None:
        self._cut_off_count -= 1
        if not self._is_over:
            self.carry(delivery, context)


def _report(error: Exception) -> None:
    """Say what happened to one delivery; the others go on."""
    if isinstance(error, GivenBackError):
        logger.debug("a handler ended whose event a shutdown has put back to pending")
    elif isinstance(error, AbandonedError):
        logger.warning("a handler ended that was given up before")
    else:
        logger.error("a delivery ended with an error that postbus did not expect", exc_info=error)
