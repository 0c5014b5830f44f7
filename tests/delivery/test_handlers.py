"""Handlers: async functions, plain functions in threads, and whatever else can be called."""

import asyncio
import contextlib
import contextvars
import functools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from postbus import Event, EventBus, EventStatus, RetryPolicy, WaitsForItselfError
from tests.delivery.steps import FlakyHandler, MakeBus, soon

request_id = contextvars.ContextVar("request_id", default="none")


async def _never_called(_: Event) -> None:
    raise AssertionError


class _Wrapped(functools.partial[object]):
    """Looks async, as what it is made of is; what it returns is its own affair."""

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        return self.keywords["call"](*args)


class TestPlainFunctions:
    async def test_they_run_in_a_thread(self, make_bus: MakeBus) -> None:
        """The event loop goes on while one blocks: here it is the loop that ends the blocking."""
        bus = make_bus()
        threads: list[threading.Thread] = []
        started, released = threading.Event(), threading.Event()

        @bus.on("order.*")
        def block(_: Event) -> None:
            threads.append(threading.current_thread())
            started.set()
            assert released.wait(10)

        async def release() -> None:
            await asyncio.to_thread(started.wait, 10)
            released.set()

        await soon(asyncio.gather(bus.publish("order.placed"), release()))

        assert threads[0] is not threading.current_thread()

    async def test_what_one_raises_is_a_failure(self, make_bus: MakeBus) -> None:
        """Retried like that of a coroutine."""
        bus = make_bus()

        @bus.on("order.*")
        def fail_once(event: Event) -> None:
            if not event.retry_count:
                raise KeyError("boom")

        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert (event.status, event.errors) == (EventStatus.DONE, ["KeyError: 'boom'"])

    async def test_stop_iteration_is_a_failure(self, make_bus: MakeBus) -> None:
        """A future can't carry it, an event's story can."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))

        @bus.on("order.*")
        def exhaust(_: Event) -> None:
            next(iter(()))

        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert event.status is EventStatus.DLQ
        assert "StopIteration" in event.errors[0]

    async def test_they_see_the_context_of_the_publisher(self, make_bus: MakeBus) -> None:
        """Each the one of its own event."""
        bus = make_bus()
        seen: dict[int, str] = {}

        @bus.on("order.*")
        def remember(event: Event) -> None:
            seen[event.payload] = request_id.get()

        async def publish(number: int) -> None:
            request_id.set(f"request {number}")
            await bus.publish("order.placed", number)

        await soon(asyncio.gather(*(asyncio.create_task(publish(number)) for number in range(5))))

        assert seen == {number: f"request {number}" for number in range(5)}

    async def test_a_coroutine_that_one_returns_is_awaited(self, make_bus: MakeBus) -> None:
        """As with a lambda around an async function; what it raises is a failure."""
        bus, handler = make_bus(), FlakyHandler(1)
        bus.subscribe(lambda event: handler(event))
        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert len(handler.events) == 2
        assert event.errors == ["ValueError: boom 1"]

    async def test_more_of_them_than_threads_all_get_their_turn(self, make_bus: MakeBus) -> None:
        """A hundred at once."""
        bus = make_bus()
        seen: list[int] = []
        bus.subscribe(lambda event: seen.append(event.payload))
        await soon(asyncio.gather(*(bus.publish("order.placed", number) for number in range(100))))

        assert sorted(seen) == list(range(100))

    async def test_no_thread_outlives_the_bus(self, make_bus: MakeBus) -> None:
        """Those that wait for work go home."""
        bus = make_bus()
        threads: set[threading.Thread] = set()
        bus.subscribe(lambda _: threads.add(threading.current_thread()))
        await soon(bus.publish("order.placed"))
        await bus.shutdown()
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)

        assert len(threads) == 1
        assert not any(thread.is_alive() for thread in threads)


class TestCoroutines:
    async def test_it_can_wait_any_number_of_times_and_is_told_what_came(self, make_bus: MakeBus) -> None:
        """With results and errors, in one task: a time limit of the handler's own holds as well."""
        bus = make_bus()
        story: list[object] = []

        @bus.on("order.*")
        async def wait_for_several(_: Event) -> None:
            task = asyncio.current_task()
            async with asyncio.timeout(10):
                await asyncio.sleep(0)
                story.append(await asyncio.to_thread(lambda: 7))
                with pytest.raises(KeyError):
                    await asyncio.to_thread(os.environ.__getitem__, "no such name")
                story.append(asyncio.current_task() is task)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.get_running_loop().create_future()

        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert (event.status, story) == (EventStatus.DONE, [7, True])

    async def test_what_one_raises_before_and_after_it_has_waited_is_a_failure(
        self, make_bus: MakeBus
    ) -> None:
        """An attempt ends like any other, whether it has come to wait or not."""
        bus = make_bus(retry=RetryPolicy(max_retries=1, base_delay=0.0))

        @bus.on("order.*")
        async def fail(event: Event) -> None:
            if event.retry_count:
                await asyncio.sleep(0)
            raise KeyError(event.retry_count)

        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert (event.status, event.errors) == (EventStatus.DLQ, ["KeyError: 0", "KeyError: 1"])

    async def test_one_that_has_dealt_with_an_error_leaves_no_trace_of_it(self, make_bus: MakeBus) -> None:
        """What it raises later has no cause that it had dealt with."""
        bus = make_bus()
        found: list[object] = []

        @bus.on("order.*")
        async def recover(_: Event) -> None:
            with contextlib.suppress(KeyError):
                await asyncio.to_thread(os.environ.__getitem__, "no such name")
            found.append(sys.exc_info()[1])

        await soon(bus.publish("order.placed"))

        assert found == [None]

    async def test_one_whose_call_raises_stop_iteration_has_failed(self, make_bus: MakeBus) -> None:
        """Only a coroutine returns that way; what is called to make one has no such excuse."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))

        def exhaust(_: Event) -> None:
            next(iter(()))

        bus.subscribe("order.*", _Wrapped(_never_called, call=exhaust))
        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert (event.status, event.errors) == (EventStatus.DLQ, ["StopIteration"])

    async def test_what_one_returns_need_not_be_a_coroutine(self, make_bus: MakeBus) -> None:
        """Whatever can be awaited: a future, say."""
        bus = make_bus()

        def wait(_: Event) -> "asyncio.Future[str]":
            return asyncio.ensure_future(asyncio.to_thread(lambda: "x"))

        bus.subscribe("order.*", _Wrapped(_never_called, call=wait))
        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert event.status is EventStatus.DONE

    @pytest.mark.parametrize("wait", [True, False])
    @pytest.mark.parametrize("has_company", [True, False])
    @pytest.mark.parametrize("has_waited", [True, False])
    async def test_one_that_waits_until_the_bus_is_idle_is_told_that_it_waits_for_itself(
        self, make_bus: MakeBus, wait: bool, has_company: bool, has_waited: bool
    ) -> None:
        """At once, and not by its time limit; it goes on, and somebody else may wait meanwhile."""
        bus, told = make_bus(), list[str]()

        @bus.on("order.placed")
        async def handle(event: Event) -> None:
            if has_waited:
                await asyncio.sleep(0)
            with pytest.raises(WaitsForItselfError, match=event.id):
                await bus.idle()
            told.append(event.id)

        if has_company:
            bus.subscribe("order.*", FlakyHandler())
        event_id = await soon(bus.publish("order.placed", wait=wait))
        await soon(bus.idle())
        event = await bus.store.get(event_id)

        assert (told, event.status, event.errors) == ([event_id], EventStatus.DONE, [])

    async def test_a_task_of_one_may_wait_until_the_bus_is_idle(self, make_bus: MakeBus) -> None:
        """The handler has ended by then."""
        bus, waiting = make_bus(), list[asyncio.Task[None]]()

        @bus.on("order.placed")
        async def handle(_: Event) -> None:
            waiting.append(asyncio.create_task(bus.idle()))

        await soon(bus.publish("order.placed"))
        await soon(asyncio.gather(*waiting))

        assert len(waiting) == 1

    async def test_they_see_the_context_of_the_publisher(self, make_bus: MakeBus) -> None:
        """And change it for nobody else."""
        bus = make_bus()
        seen: list[str] = []

        @bus.on("order.*")
        async def remember(_: Event) -> None:
            seen.append(request_id.get())
            request_id.set("changed")

        request_id.set("request 42")
        await bus.publish("order.placed")
        await bus.publish("order.placed")

        assert seen == ["request 42", "request 42"]
        assert request_id.get() == "request 42"

    async def test_the_backlog_has_no_context(self, make_bus: MakeBus) -> None:
        """Not that of whoever happened to start the bus."""
        bus = make_bus()
        seen: list[str] = []

        @bus.on("order.*")
        async def remember(_: Event) -> None:
            seen.append(request_id.get())

        request_id.set("of the one who starts")
        await bus.start()
        await bus.publish("order.placed", wait=False)
        await soon(bus.idle())

        assert seen == ["none"]


class TestCallables:
    async def test_bound_methods_partials_and_objects_are_handlers(self, make_bus: MakeBus) -> None:
        """Whatever takes one event; an async one runs in the event loop."""
        bus = make_bus()
        seen: list[tuple[str, bool]] = []
        loop_thread = threading.current_thread()

        def note(name: str) -> None:
            seen.append((name, threading.current_thread() is loop_thread))

        class Notebook:
            async def method(self, _: Event) -> None:
                note("method")

            async def __call__(self, _: Event) -> None:
                note("object")

        async def with_name(name: str, _: Event) -> None:
            note(name)

        def plain(name: str, _: Event) -> None:
            note(name)

        for handler in (
            Notebook().method,
            Notebook(),
            functools.partial(with_name, "partial"),
            functools.partial(plain, "plain partial"),
        ):
            bus.subscribe(handler)
        await soon(bus.publish("order.placed"))

        assert seen == [("method", True), ("object", True), ("partial", True), ("plain partial", False)]

    async def test_a_result_is_ignored(self, make_bus: MakeBus) -> None:
        """Whatever a handler returns, it has succeeded."""
        bus = make_bus()
        bus.subscribe(lambda _: False)
        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert event.status is EventStatus.DONE


class TestDecorator:
    async def test_it_gives_the_function_back_unchanged(self, make_bus: MakeBus) -> None:
        """Other code can go on calling it."""
        bus = make_bus()

        async def audit(_: Event) -> None: ...

        assert bus.on("order.*")(audit) is audit

    async def test_one_function_can_have_several(self, make_bus: MakeBus) -> None:
        """One subscription each."""
        bus = make_bus()
        seen: list[str] = []

        @bus.on("order.*")
        @bus.on("user.*")
        async def audit(event: Event) -> None:
            seen.append(event.type)

        await bus.publish("order.placed")
        await bus.publish("user.created")

        assert seen == ["order.placed", "user.created"]

    async def test_it_takes_the_options_of_subscribe(self, make_bus: MakeBus) -> None:
        """Here a retry override."""
        bus, handler = make_bus(), FlakyHandler(1)
        bus.on("order.*", timeout=5.0, retry={"max_retries": 0})(handler)
        event = await bus.store.get(await bus.publish("order.placed"))

        assert event.status is EventStatus.DLQ


class TestErrors:
    async def test_an_error_whose_message_cannot_be_shown_is_a_failure(self, make_bus: MakeBus) -> None:
        """The story says so."""

        class Shy(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        bus = make_bus(retry=RetryPolicy(max_retries=0))

        @bus.on("order.*")
        async def fail(_: Event) -> None:
            raise Shy

        event = await bus.store.get(await soon(bus.publish("order.placed")))

        assert event.status is EventStatus.DLQ
        assert "Shy" in event.errors[0]

    @pytest.mark.parametrize(
        "message", ["lone \ud800 surrogate", "a \0 NUL", "x" * 1_000_000], ids=["surrogate", "NUL", "long"]
    )
    async def test_an_error_with_an_odd_message_is_kept(self, make_bus: MakeBus, message: str) -> None:
        """As far as a store can keep it, and no more than a reader wants to read."""
        bus = make_bus(retry=RetryPolicy(max_retries=0))

        @bus.on("order.*")
        async def fail(_: Event) -> None:
            raise ValueError(message)

        event = await bus.dlq.get(await soon(bus.publish("order.placed")))

        assert event.errors[0].startswith("ValueError: ")
        assert len(event.errors[0]) < 20_000

    @pytest.mark.parametrize("wait", [True, False])
    async def test_a_handler_that_raises_cancelled_error_has_failed(
        self, make_bus: MakeBus, wait: bool
    ) -> None:
        """It awaited something that was cancelled; the bus was not, and goes on."""
        bus = make_bus(retry=RetryPolicy(max_retries=1))
        handler = FlakyHandler()

        @bus.on("order.cancelled")
        async def await_a_cancelled_task(_: Event) -> None:
            task = asyncio.ensure_future(asyncio.Event().wait())
            task.cancel()
            await task

        bus.subscribe("order.placed", handler)
        event_id = await soon(bus.publish("order.cancelled", wait=wait))
        await soon(bus.publish("order.placed", wait=wait))
        await soon(bus.idle())
        event = await bus.store.get(event_id)

        assert (event.status, event.errors) == (EventStatus.DLQ, ["CancelledError", "CancelledError"])
        assert len(handler.events) == 1

    @pytest.mark.parametrize("wait", [True, False])
    async def test_a_handler_that_raises_no_exception_but_a_base_exception_has_failed(
        self, make_bus: MakeBus, wait: bool
    ) -> None:
        """Some libraries have their own; what follows is delivered all the same."""

        class Odd(BaseException):
            pass

        bus = make_bus(retry=RetryPolicy(max_retries=0))
        handler = FlakyHandler()

        @bus.on("order.odd")
        async def fail(_: Event) -> None:
            raise Odd("boom")

        bus.subscribe("order.placed", handler)
        event_id = await soon(bus.publish("order.odd", wait=wait))
        await soon(bus.publish("order.placed", wait=wait))
        await soon(bus.idle())
        event = await bus.store.get(event_id)

        assert event.status is EventStatus.DLQ
        assert "Odd: boom" in event.errors[0]
        assert len(handler.events) == 1


async def test_the_time_of_a_plain_function_begins_when_there_is_a_thread_for_it(database: Path) -> None:
    """Many at once wait for each other, and none of them is late for that."""
    bus = EventBus(database, handler_timeout=1.0, retry=RetryPolicy(max_retries=0))
    running, peak, guard = 0, 0, threading.Lock()

    @bus.on("order.*")
    def work(_event: Event) -> None:
        nonlocal running, peak
        with guard:
            running += 1
            peak = max(peak, running)
        time.sleep(0.1)
        with guard:
            running -= 1

    async with bus:
        await asyncio.gather(*(bus.publish("order.placed") for _ in range(400)))
        dead = await bus.dlq.list()

    assert dead.total == 0
    assert peak <= 32
