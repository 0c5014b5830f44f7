"""Events and state types that several tests use."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from pydantic import BaseModel

from postbus.events import Event

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def an_event(**fields: Any) -> Event:
    """An event as a subscriber gets it."""
    return Event(**{"id": "e-1", "type": "order.placed", "created_at": NOON, **fields})


@dataclass
class OrderView:
    """A state as a dataclass."""

    total: int
    items: list[str] = field(default_factory=list)
    paid_at: datetime | None = None


class OrderStruct(msgspec.Struct):
    """A state as a msgspec Struct."""

    total: int
    items: list[str] = []
    paid_at: datetime | None = None


class OrderModel(BaseModel):
    """A state as a pydantic model."""

    total: int
    items: list[str] = []
    paid_at: datetime | None = None
