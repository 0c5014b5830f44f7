"""The fixtures of the embedded bus, and a database on PostgreSQL."""

from tests.contracts.shared_database import shared_database
from tests.delivery.fixtures import clock, database, make_bus, no_error_is_lost

__all__ = ["clock", "database", "make_bus", "no_error_is_lost", "shared_database"]
