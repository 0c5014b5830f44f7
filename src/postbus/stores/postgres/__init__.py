"""The store on PostgreSQL."""

from postbus.stores.postgres.store import PgEventStore

__all__ = ["PgEventStore"]
