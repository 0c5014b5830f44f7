"""Orders are paid for and shipped: a saga takes the steps, and payment and shipping know only events.

python examples/order_fulfilment.py              in a temporary file
python examples/order_fulfilment.py orders.db    end it at any moment, even with kill -9, and start it again
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from postbus import Event, EventBus, Projection, Saga, SagaContext, SQLiteStateStore

CREDIT_LIMIT = 900


@dataclass(frozen=True)
class Fulfilment:
    """What the saga remembers of one order while it is under way."""

    amount: int
    stage: str


class OrderFulfilment(Saga[Fulfilment]):
    """Which step follows which. State, published events and checkpoint are written together."""

    subscriber_id = "saga:order-fulfilment"
    patterns = ("order.placed", "payment.received", "payment.failed", "shipment.sent")

    def saga_id(self, event: Event) -> str:
        """Every order is an instance of its own."""
        return str(event.payload["order"])

    def handle(self, state: Fulfilment | None, event: Event, ctx: SagaContext) -> Fulfilment | None:
        """One step."""
        order = self.saga_id(event)
        if event.type == "order.placed":
            amount = event.payload["amount"]
            ctx.publish("payment.requested", {"order": order, "amount": amount})
            return Fulfilment(amount, "waits for its payment")
        if event.type == "payment.received" and state is not None:
            ctx.publish("shipment.requested", {"order": order})
            return replace(state, stage="waits for its shipment")
        # The end of the order, one way or the other: None, and its state is deleted.
        if event.type == "payment.failed":
            ctx.publish("order.cancelled", {"order": order}, stream_id=order)
        elif event.type == "shipment.sent":
            ctx.publish("order.fulfilled", {"order": order}, stream_id=order)
        return None


class OrderBoard(Projection[str]):
    """What became of each order; the key of its state is the stream of the event, here the order."""

    subscriber_id = "projection:order-board"
    patterns = ("order.*",)

    def apply(self, state: str | None, event: Event) -> str:
        """The latest news of the order."""
        return event.type.removeprefix("order.")


def subscribe_services(bus: EventBus) -> None:
    """Payment and shipping, which could as well be programs of their own on the same file."""

    # An event may come again after a crash, so the answer gets an id made of the question's:
    # publishing it a second time stores nothing.
    @bus.on("payment.requested", id="payment")
    async def take_payment(event: Event) -> None:
        await asyncio.sleep(0.01)  # a bank takes its time
        outcome = "received" if event.payload["amount"] <= CREDIT_LIMIT else "failed"
        await bus.publish(f"payment.{outcome}", event.payload, event_id=f"{event.id}-answered")

    @bus.on("shipment.requested", id="shipping")
    async def ship(event: Event) -> None:
        await bus.publish("shipment.sent", event.payload, event_id=f"{event.id}-answered")

    @bus.on("*", id="journal")
    async def write_journal(event: Event) -> None:
        print(f"{event.global_sequence:5}  {event.type:18}  {event.payload['order']}", flush=True)


async def fulfil_orders(path: Path, order_count: int) -> bool:
    """Place the orders and see them through; whether all came to an end."""
    bus = EventBus(path)
    board = SQLiteStateStore(bus.store, "order-board", str)
    bus.subscribe(OrderFulfilment(SQLiteStateStore(bus.store, "order-fulfilment", Fulfilment)))
    bus.subscribe(OrderBoard(board))
    subscribe_services(bus)
    async with bus:
        for number in range(1, order_count + 1):
            order = f"order-{number}"
            payload = {"order": order, "amount": number * 137 % 1000}
            # With an id of its own an order is placed once, however often this program is started.
            await bus.publish("order.placed", payload, stream_id=order, event_id=f"{order}-placed")
        # Each has published its answers when it has caught up, so the next one finds them all.
        saga = OrderFulfilment.subscriber_id
        for subscriber in (saga, "payment", saga, "shipping", saga, OrderBoard.subscriber_id, "journal"):
            await bus.subscription(subscriber).caught_up(timeout=60)
        outcomes = Counter([outcome async for _, outcome in board.items()])
    print(", ".join(f"{count} orders {outcome}" for outcome, count in sorted(outcomes.items())))
    return outcomes.keys() <= {"fulfilled", "cancelled"}


def main() -> int:
    """Run on the file that was given, or on one that is deleted in the end."""
    parser = argparse.ArgumentParser(description="Fulfil orders with a saga.")
    parser.add_argument("path", nargs="?", type=Path, help="the SQLite file (default: a temporary one)")
    parser.add_argument("--orders", type=int, default=10, help="how many orders to place (default: 10)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.path or Path(folder) / "orders.db"
        return 0 if asyncio.run(fulfil_orders(path, arguments.orders)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
