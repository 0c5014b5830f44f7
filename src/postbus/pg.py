"""PgEventBus and PgStateStore: a bus on PostgreSQL with all its options. Needs the extra "postgres"."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict, Unpack

from postbus.bus import EventBus
from postbus.config import ReliableDeliveryConfig, RetryPolicy
from postbus.observers.states import S, StateStore
from postbus.ports import Clock
from postbus.stores.postgres import PgEventStore

if TYPE_CHECKING:
    import asyncpg

__all__ = ["PgEventBus", "PgEventStore", "PgStateStore"]


class BusOptions(TypedDict, total=False):
    """What any bus takes; see EventBus."""

    config: ReliableDeliveryConfig | None
    retry: RetryPolicy | None
    handler_timeout: float
    shutdown_timeout: float
    max_payload_bytes: int
    id_factory: Callable[[], object]
    clock: Clock | None
    noise: Callable[[], float]


class PgEventBus(EventBus):
    """A durable event bus on PostgreSQL: PgEventBus("postgresql://localhost/app").

    It takes a DSN, or a pool of asyncpg that it shares with the application. *session_dsn* is for the one
    connection that holds locks and listens, where the DSN or the pool goes through a pooler that hands
    connections from transaction to transaction. *notify* says how other processes are woken: by a
    notification after each commit, by a trigger in the transaction ("trigger", for writers in other
    languages), or not at all ("off": they poll).
    """

    def __init__(
        self,
        dsn_or_pool: "str | asyncpg.Pool[asyncpg.Record]",
        *,
        schema: str = "postbus",
        session_dsn: str | None = None,
        notify: Literal["after_commit", "trigger", "off"] = "after_commit",
        pool_size: int = 5,
        **options: Unpack[BusOptions],
    ) -> None:
        store = PgEventStore(
            dsn_or_pool,
            schema=schema,
            session_dsn=session_dsn,
            notify=notify,
            pool_size=pool_size,
            clock=options.get("clock"),
        )
        super().__init__(store, **options)


class PgStateStore(StateStore[S]):
    """States in the database of a PgEventBus: PgStateStore(bus.store, "orders", OrderView)."""

    _store_type: ClassVar[type] = PgEventStore
