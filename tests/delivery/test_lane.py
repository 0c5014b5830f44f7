"""The lane of events that no publisher waits for: what may not stop it, and what may not double it."""

import asyncio

from postbus import Event, RetryPolicy
from tests.delivery.steps import FlakyHandler, MakeBus, soon, start, until


async def test_many_that_wait_for_one_handler_hold_up_no_other(make_bus: MakeBus) -> None:
    """However many there are: a mail server that is down does not stop the rest of a worker."""
    bus, fine = make_bus(retry=RetryPolicy(max_retries=1, base_delay=3600.0)), FlakyHandler()

    @bus.on("bad.*")
    async def fail(_: Event) -> None:
        raise ValueError

    bus.subscribe("good.*", fine)
    await bus.publish_many([("bad.thing", number) for number in range(2_500)], wait=False)
    await bus.publish("good.thing", 42, wait=False)

    await until(lambda: fine.payloads == [42])


async def test_those_that_had_no_place_come_later_and_in_order(make_bus: MakeBus) -> None:
    """When those before them are done, and without a word from anybody."""
    bus, is_down, seen = make_bus(), asyncio.Event(), list[int]()

    @bus.on("bad.*")
    async def handle(event: Event) -> None:
        if not is_down.is_set():
            raise ValueError
        seen.append(event.payload)

    bus.subscribe("good.*", FlakyHandler())
    await bus.publish_many([("bad.thing", number) for number in range(2_500)], wait=False)
    await bus.publish("good.thing", wait=False)
    is_down.set()
    await soon(bus.idle())

    assert sorted(seen) == list(range(2_500))


async def test_it_goes_on_after_somebody_has_cancelled_all_tasks(make_bus: MakeBus) -> None:
    """As some programs do with what is left over of a job."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    await bus.publish("order.placed", 1)
    _lanes()[0].cancel()
    await bus.publish("order.placed", 2, wait=False)
    await soon(bus.idle())

    assert handler.payloads == [1, 2]


async def test_a_start_that_was_cancelled_leaves_no_second_one(make_bus: MakeBus) -> None:
    """The next start goes on from there; two would break the order."""
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe(handler)
    bus.subscribe("*", FlakyHandler(), id="mail", start_from="now")
    starting = start(bus.start())
    # Then it has to ask the store where the log is now.
    while not _lanes():  # noqa: ASYNC110
        await asyncio.sleep(0)
    was_started = starting.done()
    starting.cancel()
    await asyncio.wait([starting])
    await bus.start()
    await bus.publish_many([("order.placed", number) for number in range(20)], wait=False)
    await soon(bus.idle())

    assert not was_started
    assert len(_lanes()) == 1
    assert handler.payloads == list(range(20))


def _lanes() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "postbus backlog"]
