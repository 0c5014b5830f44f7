"""Fixtures of the tests of projections, sagas and their states."""

import pytest

from postbus.stores.memory import InMemoryStore


@pytest.fixture
def store() -> InMemoryStore:
    """A store of this test's own."""
    return InMemoryStore()
