"""ports.SubscriberLocks: a durable subscriber has one holder at a time."""

import pytest

from postbus.events import SubscriberId
from postbus.ports import Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import MAIL, STOCK


class TestSubscriberLocks:
    async def test_there_is_one_holder_at_a_time_also_in_this_process(self, store: Store) -> None:
        """Two buses of one process must not both run it."""
        assert [await store.subscriber_locks.try_acquire(MAIL) for _ in range(3)] == [True, False, False]

    async def test_a_released_lock_can_be_acquired_again(self, store: Store) -> None:
        """Releasing is idempotent."""
        await store.subscriber_locks.try_acquire(MAIL)
        store.subscriber_locks.release(MAIL)
        store.subscriber_locks.release(MAIL)

        assert [await store.subscriber_locks.try_acquire(MAIL) for _ in range(2)] == [True, False]

    async def test_releasing_what_was_never_acquired_is_fine(self, store: Store) -> None:
        """A shutdown need not know how far the start came."""
        store.subscriber_locks.release(MAIL)

        assert await store.subscriber_locks.try_acquire(MAIL)

    async def test_subscribers_do_not_exclude_each_other(self, store: Store) -> None:
        """Each has a lock of its own."""
        assert await store.subscriber_locks.try_acquire(MAIL)
        assert await store.subscriber_locks.try_acquire(STOCK)
        store.subscriber_locks.release(MAIL)

        assert await store.subscriber_locks.try_acquire(MAIL)
        assert not await store.subscriber_locks.try_acquire(STOCK)

    @pytest.mark.parametrize("name", ["a/b", "../x", "a\\b", "ü☃", "A", "x" * 255, ".", "a:b?*", "%s"])
    async def test_any_name_can_be_locked(self, store: Store, name: str) -> None:
        """And is another one than a name that looks like it."""
        other = name.swapcase() if name.swapcase() != name else name + "'"

        assert await store.subscriber_locks.try_acquire(SubscriberId(name))
        assert not await store.subscriber_locks.try_acquire(SubscriberId(name))
        assert await store.subscriber_locks.try_acquire(SubscriberId(other))

    async def test_a_store_that_was_closed_holds_no_locks(self, store: Store) -> None:
        """Another can go on at once."""
        await store.subscriber_locks.try_acquire(MAIL)
        await store.close()
        await store.open()

        assert await store.subscriber_locks.try_acquire(MAIL)

    @on_embedded
    async def test_the_dispatch_is_another_lock(self, store: Store) -> None:
        """Handlers and subscribers are not in each other's way."""
        assert store.dispatch_lock.try_acquire()
        assert await store.subscriber_locks.try_acquire(MAIL)
        store.dispatch_lock.release()

        assert not await store.subscriber_locks.try_acquire(MAIL)
