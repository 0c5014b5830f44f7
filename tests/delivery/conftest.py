"""The fixtures of the embedded bus."""

from tests.delivery.fixtures import clock, database, make_bus, no_error_is_lost

__all__ = ["clock", "database", "make_bus", "no_error_is_lost"]
