"""postbus: a durable event bus for Python. A published event is never lost."""

from postbus.bus import EventBus
from postbus.config import RetryPolicy
from postbus.delivery.counters import RetryCounters
from postbus.errors import (
    BusLoopError,
    DuplicateEventIdError,
    EventBusShutdownError,
    EventNotFoundError,
    InvalidConfigError,
    InvalidEventIdError,
    InvalidEventTypeError,
    InvalidHandlerError,
    InvalidMetadataError,
    InvalidPageError,
    InvalidPatternError,
    InvalidPayloadError,
    InvalidTargetError,
    NotADatabaseError,
    NotADeadLetterError,
    PostbusError,
    SchemaTooNewError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from postbus.events import DeadLetterPage, Event, EventStatus, NewEvent, SubscriptionRow
from postbus.inspection import DLQInspector
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore

__all__ = [
    "BusLoopError",
    "DLQInspector",
    "DeadLetterPage",
    "DuplicateEventIdError",
    "Event",
    "EventBus",
    "EventBusShutdownError",
    "EventNotFoundError",
    "EventStatus",
    "InMemoryStore",
    "InvalidConfigError",
    "InvalidEventIdError",
    "InvalidEventTypeError",
    "InvalidHandlerError",
    "InvalidMetadataError",
    "InvalidPageError",
    "InvalidPatternError",
    "InvalidPayloadError",
    "InvalidTargetError",
    "NewEvent",
    "NotADatabaseError",
    "NotADeadLetterError",
    "PostbusError",
    "RetryCounters",
    "RetryPolicy",
    "SQLiteStore",
    "SchemaTooNewError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "SubscriptionRow",
]
