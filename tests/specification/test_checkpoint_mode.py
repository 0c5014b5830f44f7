"""0005, unit tests: the batched mode exists, and decides when to write as specified."""

import pytest

from postbus import EventBus
from postbus.config import Batched, CheckpointMode, ReliableDeliveryConfig, Synchronous
from postbus.errors import InvalidConfigError
from postbus.testing import ManualClock
from tests.delivery.steps import FlakyHandler, soon, until
from tests.durable.steps import ID, MakeBus, position_of, publish_numbers


def test_checkpoint_mode_batched_exists() -> None:
    """It differs from the synchronous mode, which stays the default."""
    modes: set[object] = {CheckpointMode.batched(), CheckpointMode.synchronous()}

    assert len(modes) == 2
    assert ReliableDeliveryConfig().checkpoint_mode == CheckpointMode.synchronous()


def test_checkpoint_mode_batched_helper_methods() -> None:
    """With settings, and with the defaults: 100 events, 5 seconds."""
    assert CheckpointMode.batched(50, 2.5) == Batched(batch_size=50, max_delay=2.5)
    assert CheckpointMode.batched() == Batched(batch_size=100, max_delay=5.0)
    assert CheckpointMode.synchronous() == Synchronous()
    with pytest.raises(InvalidConfigError):
        CheckpointMode.batched(batch_size=0)


async def processed(new_bus: MakeBus, count: int, *, batch_size: int, max_delay: float) -> EventBus:
    """A bus whose subscriber has processed so many events, at one moment."""
    mode = CheckpointMode.batched(batch_size=batch_size, max_delay=max_delay)
    bus = new_bus(config=ReliableDeliveryConfig(checkpoint_mode=mode))
    bus.subscribe("order.*", FlakyHandler(), id=ID)
    await publish_numbers(bus, *range(1, count + 1))
    await soon(bus.idle())
    return bus


@pytest.mark.parametrize("count", [5, 6])
async def test_should_flush_on_batch_size(new_bus: MakeBus, count: int) -> None:
    """The event that fills the batch has it written, however young it is."""
    bus = await processed(new_bus, count, batch_size=5, max_delay=60.0)

    await until(lambda: (bus.subscription(ID).checkpoint or 0) >= 5)
    assert await position_of(bus) >= 5


async def test_should_flush_on_max_delay(new_bus: MakeBus, still: ManualClock) -> None:
    """Half a second after its first event it is written, however small it is."""
    bus = await processed(new_bus, 3, batch_size=100, max_delay=0.5)
    assert await position_of(bus) == 0

    await still.advance(0.5)
    await until(lambda: bus.subscription(ID).checkpoint == 3)
    assert await position_of(bus) == 3


async def test_should_not_flush_prematurely(new_bus: MakeBus, still: ManualClock) -> None:
    """Neither full nor old: it waits."""
    bus = await processed(new_bus, 4, batch_size=5, max_delay=60.0)
    await still.advance(59.9)
    await soon(bus.idle())

    assert await position_of(bus) == 0
