"""Fixtures of the tests of projections, sagas and their states."""

import pytest

from postbus.stores.memory import InMemoryStore
from tests.contracts.shared_database import shared_database

__all__ = ["shared_database"]


@pytest.fixture
def store() -> InMemoryStore:
    """A store of this test's own."""
    return InMemoryStore()
