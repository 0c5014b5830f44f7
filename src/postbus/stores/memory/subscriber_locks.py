"""Who runs which durable subscriber of a store that no other process can see."""

from collections.abc import Callable

from postbus.events import SubscriberId


class InMemorySubscriberLocks:
    """Fulfils ports.SubscriberLocks, between the buses of one process."""

    def __init__(self) -> None:
        self._held: set[SubscriberId] = set()

    async def try_acquire(self, subscriber_id: SubscriberId) -> bool:
        """Become the holder without waiting; False if anybody is."""
        if subscriber_id in self._held:
            return False
        self._held.add(subscriber_id)
        return True

    def release(self, subscriber_id: SubscriberId) -> None:
        """Let another become the holder. Idempotent."""
        self._held.discard(subscriber_id)

    def watch(
        self,
        on_lost: Callable[[], None] | None,
        on_free: Callable[[], None] | None,
        failover_timeout: float,
    ) -> None:
        """These locks are never lost, and whoever wants one asks again."""

    def release_all(self) -> None:
        """Let go of everything, as the end of a process would."""
        self._held.clear()
