"""The process that gets killed: a bus, three handlers and many publishers.

Run by the demonstration as ``python -m postbus.ops.cli.demo.child DATABASE RECEIPTS ORDERS LAST``.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from postbus import Event, EventBus, PostbusError, RetryPolicy
from postbus.delivery.interrupted import is_interruption
from postbus.ops.cli.demo.receipts import Counts, Receipts, ReceiptWriter

PUBLISHER_COUNT = 50

# Short, so that a dead letter is made while one looks on.
_RETRY = RetryPolicy(max_retries=3, base_delay=0.05, max_delay=0.2)
_EVERY_REFUND, _EVERY_FLAKY = 10, 100
_UNKNOWN_CURRENCY = "???"
_SECONDS_BETWEEN_COUNTS = 0.1
_STDIN = 0


@dataclass(frozen=True, slots=True)
class Order:
    """One event to publish; its id is ours, so that publishing it again stores nothing."""

    event_id: str
    type: str
    payload: dict[str, object]


def make_orders(order_count: int, last: int) -> Iterator[Order]:
    """The same orders every time, up to *last*; two refunds of the first *order_count* are poison."""
    poison = {share - share % _EVERY_REFUND for share in (order_count // 4, order_count * 5 // 8)}
    for number in range(1, last + 1):
        kind = "order.placed" if number % _EVERY_REFUND else "order.refunded"
        currency = _UNKNOWN_CURRENCY if number in poison else "EUR"
        yield Order(f"order-{number:06}", kind, {"order": number, "amount": 9.99, "currency": currency})


def add_handlers(bus: EventBus, receipts: ReceiptWriter) -> None:
    """A normal one, a flaky one, and one that a poison event makes fail every time."""

    @bus.on("order.*")
    async def audit(event: Event) -> None:
        if any(map(is_interruption, event.errors)):
            receipts.recover(event.id)

    @bus.on("order.placed")
    async def charge(event: Event) -> None:
        if event.payload["order"] % _EVERY_FLAKY == 1 and event.retry_count == 0:
            raise ConnectionError("the payment service does not answer")

    @bus.on("order.refunded")
    async def refund(event: Event) -> None:
        if event.payload["currency"] == _UNKNOWN_CURRENCY:
            raise ValueError(f"unknown currency {event.payload['currency']!r}")


async def publish_orders(database: Path, receipts_path: Path, order_count: int, last: int) -> None:
    """Publish what has no receipt yet, until all is done or somebody says stop."""
    before = Receipts(receipts_path)
    before.read()
    receipts = ReceiptWriter(receipts_path)
    bus = EventBus(database, retry=_RETRY)
    add_handlers(bus, receipts)
    stopping = asyncio.Event()
    _stop_on_request(stopping)
    orders = (each for each in make_orders(order_count, last) if each.event_id not in before.acknowledged)
    async with bus:
        receipts.start()
        counting = asyncio.create_task(_count(bus, receipts))
        await asyncio.gather(*(_publish(bus, orders, receipts, stopping) for _ in range(PUBLISHER_COUNT)))
        if not stopping.is_set():
            # What the killed process left behind is delivered beside the new orders.
            await bus.idle()
        counting.cancel()
    receipts.count(_counts_of(bus))


async def _publish(
    bus: EventBus, orders: Iterator[Order], receipts: ReceiptWriter, stopping: asyncio.Event
) -> None:
    """One of many publishers that share the orders."""
    while not stopping.is_set() and (order := next(orders, None)) is not None:
        receipts.acknowledge(await bus.publish(order.type, order.payload, event_id=order.event_id))


async def _count(bus: EventBus, receipts: ReceiptWriter) -> None:
    while True:
        receipts.count(_counts_of(bus))
        await asyncio.sleep(_SECONDS_BETWEEN_COUNTS)


def _counts_of(bus: EventBus) -> Counts:
    counters = bus.counters.values()
    return Counts(
        sum(each.retry_count for each in counters),
        sum(each.dead_letter_count for each in counters),
    )


def _stop_on_request(stopping: asyncio.Event) -> None:
    """Stop on a signal, and when the parent is gone: then its end of standard input is closed."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)

    def read() -> None:
        if not os.read(_STDIN, 1024):
            loop.remove_reader(_STDIN)
            stopping.set()

    loop.add_reader(_STDIN, read)


def main(arguments: Sequence[str]) -> int:
    """Run the process; its exit code."""
    database, receipts_path, order_count, last = arguments
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(publish_orders(Path(database), Path(receipts_path), int(order_count), int(last)))
    except (PostbusError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
