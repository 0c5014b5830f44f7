"""What subscribe() takes for a durable subscriber, and what it refuses."""

from typing import Any

import pytest

from postbus import (
    CheckpointMode,
    DuplicateSubscriberError,
    Event,
    EventBus,
    InvalidConfigError,
    InvalidHandlerError,
    InvalidPatternError,
    InvalidSubscriberIdError,
    ReliableDeliveryConfig,
)
from tests.delivery.steps import FlakyHandler, soon
from tests.durable.steps import ID, MakeBus, publish_numbers


def test_the_given_id_is_returned(make_bus: MakeBus) -> None:
    assert make_bus().subscribe("*", FlakyHandler(), id="projection:orders") == "projection:orders"


def test_a_handler_alone_takes_every_event(make_bus: MakeBus) -> None:
    assert make_bus().subscribe(FlakyHandler(), id=ID) == ID


@pytest.mark.parametrize("id", ["", "x" * 256, "a\nb", "a\0b", 5, b"mail", True])
def test_an_id_that_is_none_is_refused(make_bus: MakeBus, id: Any) -> None:
    with pytest.raises(InvalidSubscriberIdError, match="expected a string of 1 to 255 printable characters"):
        make_bus().subscribe("*", FlakyHandler(), id=id)


@pytest.mark.parametrize(
    "id", ["x" * 255, "'; DROP TABLE events; --", 'a"b', "größe 🚚", "a/../b", "%", "NUL"]
)
async def test_any_printable_id_will_do(make_bus: MakeBus, id: str) -> None:
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=id)
    await publish_numbers(bus, 1)
    await soon(bus.subscription(id).caught_up())

    assert handler.payloads == [1]
    assert [checkpoint.subscriber_id for checkpoint in await bus.store.checkpoints.list()] == [id]


@pytest.mark.parametrize("is_started", [False, True])
async def test_an_id_is_taken_once(make_bus: MakeBus, is_started: bool) -> None:
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    if is_started:
        await bus.start()
    with pytest.raises(DuplicateSubscriberError, match="'mail' already; give this one another id"):
        bus.subscribe("*", FlakyHandler(), id=ID)
    await publish_numbers(bus, 1)
    await soon(bus.idle())

    assert handler.payloads == [1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": 0}, InvalidConfigError),
        ({"timeout": "5"}, InvalidConfigError),
        ({"retry": 5}, InvalidConfigError),
        ({"retry": {"retries": 5}}, InvalidConfigError),
        ({"retry": {"max_retries": -1}}, InvalidConfigError),
        ({"checkpoint_mode": "batched"}, InvalidConfigError),
        ({"pattern": "order.pla*"}, InvalidPatternError),
        ({"handler": 5}, InvalidHandlerError),
        ({"handler": lambda: None}, InvalidHandlerError),
        ({"handler": None}, InvalidHandlerError),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_subscribed(
    make_bus: MakeBus, options: dict[str, Any], error: type[Exception]
) -> None:
    bus = make_bus()
    given = {"pattern": "*", "handler": FlakyHandler(), "id": ID, **options}
    with pytest.raises(error):
        bus.subscribe(**given)
    bus.subscribe("*", FlakyHandler(), id=ID)


def test_a_checkpoint_mode_without_an_id_is_refused(make_bus: MakeBus) -> None:
    with pytest.raises(InvalidConfigError, match="an id with it"):
        make_bus().subscribe("*", FlakyHandler(), checkpoint_mode=CheckpointMode.synchronous())


@pytest.mark.parametrize("config", [{"max_retries": 1}, "default", 5])
def test_a_configuration_that_is_none_is_refused(config: Any) -> None:
    with pytest.raises(InvalidConfigError, match="config"):
        EventBus("memory:", config=config)


async def test_the_decorator_takes_the_same_and_gives_the_function_back(make_bus: MakeBus) -> None:
    bus = make_bus()
    seen: list[int] = []

    async def handler(event: Event) -> None:
        seen.append(event.payload)

    decorated = bus.on(
        "order.*",
        id=ID,
        timeout=5,
        retry={"max_retries": 1},
        start_from=1,
        checkpoint_mode=CheckpointMode.batched(2, 1),
    )(handler)
    await publish_numbers(bus, 1, 2)
    await soon(bus.idle())

    assert decorated is handler
    assert seen == [2]


async def test_a_process_without_handlers_can_publish_for_one_that_has_them(make_bus: MakeBus) -> None:
    """A durable subscriber needs nobody to remember it but its checkpoint."""
    publisher = make_bus(config=ReliableDeliveryConfig(poll_interval=0.1))
    await publish_numbers(publisher, 1, 2)
    await publisher.shutdown()
    bus, handler = make_bus(), FlakyHandler()
    bus.subscribe("*", handler, id=ID)
    await bus.start()
    await soon(bus.idle())

    assert handler.payloads == [1, 2]
