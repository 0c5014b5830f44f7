"""Who runs the in-process handlers of a store that no other process can see."""


class InMemoryDispatchLock:
    """Fulfils ports.DispatchLock: there is one process, and it is the owner."""

    def try_acquire(self) -> bool:
        """Always this process."""
        return True

    def release(self) -> None:
        """Nobody else waits for it."""
