"""postbus: a durable event bus for Python. A published event is never lost."""

from typing import TYPE_CHECKING, Any

from postbus.bus import EventBus
from postbus.config import (
    CheckpointMode,
    InstanceMode,
    ReliableDeliveryConfig,
    RetryPolicy,
)
from postbus.delivery.counters import RetryCounters
from postbus.delivery.handle import SubscriptionHandle
from postbus.errors import (
    BusLoopError,
    DuplicateEventIdError,
    DuplicateSubscriberError,
    DurableIdRequiredError,
    EventBusShutdownError,
    EventNotFoundError,
    FileReplacedError,
    InvalidConfigError,
    InvalidEventFieldError,
    InvalidEventIdError,
    InvalidEventTypeError,
    InvalidHandlerError,
    InvalidMetadataError,
    InvalidObserverError,
    InvalidPageError,
    InvalidPatternError,
    InvalidPayloadError,
    InvalidStateError,
    InvalidSubscriberIdError,
    InvalidTargetError,
    MigrationNeededError,
    MissingExtraError,
    NoForeignTransactionError,
    NotADatabaseError,
    NotADeadLetterError,
    PayloadTypeError,
    PostbusError,
    PublishedTooLateError,
    SchemaTooNewError,
    StateTypeError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    SubscriberFencedError,
    SubscriptionNotFoundError,
    SubscriptionStoppedError,
    TransactionEndedError,
    UnsoundLogError,
    UpcastError,
    WaitsForItselfError,
    WrongExpectedVersionError,
)
from postbus.events import (
    DeadLetter,
    DeadLetterPage,
    Event,
    EventStatus,
    NewEvent,
    SubscriptionRow,
)
from postbus.inspection import DLQInspector
from postbus.observers import Projection, Saga, SagaContext, StateStore
from postbus.ports import EventObserver
from postbus.state_stores import InMemoryStateStore, SQLiteStateStore
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from postbus.pg import PgEventBus, PgEventStore, PgStateStore

__all__ = [
    "BusLoopError",
    "CheckpointMode",
    "DLQInspector",
    "DeadLetter",
    "DeadLetterPage",
    "DuplicateEventIdError",
    "DuplicateSubscriberError",
    "DurableIdRequiredError",
    "Event",
    "EventBus",
    "EventBusShutdownError",
    "EventNotFoundError",
    "EventObserver",
    "EventStatus",
    "FileReplacedError",
    "InMemoryStateStore",
    "InMemoryStore",
    "InstanceMode",
    "InvalidConfigError",
    "InvalidEventFieldError",
    "InvalidEventIdError",
    "InvalidEventTypeError",
    "InvalidHandlerError",
    "InvalidMetadataError",
    "InvalidObserverError",
    "InvalidPageError",
    "InvalidPatternError",
    "InvalidPayloadError",
    "InvalidStateError",
    "InvalidSubscriberIdError",
    "InvalidTargetError",
    "MigrationNeededError",
    "MissingExtraError",
    "NewEvent",
    "NoForeignTransactionError",
    "NotADatabaseError",
    "NotADeadLetterError",
    "PayloadTypeError",
    "PgEventBus",
    "PgEventStore",
    "PgStateStore",
    "PostbusError",
    "Projection",
    "PublishedTooLateError",
    "ReliableDeliveryConfig",
    "RetryCounters",
    "RetryPolicy",
    "SQLiteStateStore",
    "SQLiteStore",
    "Saga",
    "SagaContext",
    "SchemaTooNewError",
    "StateStore",
    "StateTypeError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "SubscriberFencedError",
    "SubscriptionHandle",
    "SubscriptionNotFoundError",
    "SubscriptionRow",
    "SubscriptionStoppedError",
    "TransactionEndedError",
    "UnsoundLogError",
    "UpcastError",
    "WaitsForItselfError",
    "WrongExpectedVersionError",
]

_NEEDS_POSTGRES = ("PgEventBus", "PgEventStore", "PgStateStore")


def __getattr__(name: str) -> Any:
    # Not imported before somebody asks: embedded use needs no driver for PostgreSQL.
    if name not in _NEEDS_POSTGRES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from postbus import pg
    except ModuleNotFoundError as error:
        raise MissingExtraError(name, "postgres") from error
    return getattr(pg, name)
