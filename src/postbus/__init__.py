"""postbus: a durable event bus for Python. A published event is never lost."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from postbus.bus import EventBus
from postbus.config import (
    AnyCheckpointMode,
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
    LayoutChangedError,
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
    TransactionFailedError,
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
from postbus.ports import Clock, EventObserver, EventStore, Store
from postbus.state_stores import InMemoryStateStore, SQLiteStateStore
from postbus.stores.memory import InMemoryStore
from postbus.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from postbus.pg import PgEventBus, PgEventStore, PgStateStore

    __version__: str

__all__ = [
    "AnyCheckpointMode",
    "BusLoopError",
    "CheckpointMode",
    "Clock",
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
    "EventStore",
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
    "LayoutChangedError",
    "MigrationNeededError",
    "MissingExtraError",
    "NewEvent",
    "NoForeignTransactionError",
    "NotADatabaseError",
    "NotADeadLetterError",
    "PayloadTypeError",
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
    "Store",
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
    "TransactionFailedError",
    "UnsoundLogError",
    "UpcastError",
    "WaitsForItselfError",
    "WrongExpectedVersionError",
]

_NEEDS_POSTGRES = ("PgEventBus", "PgEventStore", "PgStateStore")

# `from postbus import *` asks for every name of the list, and must work without the extra.
if find_spec("asyncpg") is not None:
    __all__ += ["PgEventBus", "PgEventStore", "PgStateStore"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _read_version()
    # Not imported before somebody asks: embedded use needs no driver for PostgreSQL.
    if name not in _NEEDS_POSTGRES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from postbus import pg
    except ModuleNotFoundError as error:
        raise MissingExtraError(name, "postgres") from error
    return getattr(pg, name)


def _read_version() -> str:
    # What looks it up takes some milliseconds to import, and few ask.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError as error:
        raise AttributeError(f"{__name__!r} was not installed, so that its version is not known") from error
