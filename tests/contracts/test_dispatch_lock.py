"""ports.DispatchLock: one process per store runs the in-process handlers."""

from postbus.ports import Store
from tests.contracts.backends import on_embedded

pytestmark = on_embedded


class TestDispatchLock:
    async def test_the_only_process_becomes_and_stays_the_owner(self, store: Store) -> None:
        """Asking again does not lose it."""
        assert [store.dispatch_lock.try_acquire() for _ in range(3)] == [True, True, True]

    async def test_a_released_lock_can_be_acquired_again(self, store: Store) -> None:
        """Releasing is idempotent, and no farewell for ever."""
        store.dispatch_lock.try_acquire()
        store.dispatch_lock.release()
        store.dispatch_lock.release()

        assert store.dispatch_lock.try_acquire()

    async def test_releasing_what_was_never_acquired_is_fine(self, store: Store) -> None:
        """A shutdown need not know how far the start came."""
        store.dispatch_lock.release()

        assert store.dispatch_lock.try_acquire()
