"""A store that forgets everything when its process ends: for tests."""

from postbus.stores.memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
