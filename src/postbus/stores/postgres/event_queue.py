"""The ports of the in-process handlers, which a store on PostgreSQL has none of."""

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from postbus.events import Draft, Event, GlobalSequence, SubscriptionRow
from postbus.ports import OnStored
from postbus.stores.postgres.appending import Appending


class PgEventQueue:
    """The EventQueue port: no event is ever in processing."""

    def __init__(self, appending: Appending) -> None:
        self._appending = appending

    def add(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        """Store the drafts, all or none, and call *on_stored* when they are durable."""
        self._appending.add(drafts, on_stored)

    def finish(self, sequence: GlobalSequence) -> None:
        """Never called."""
        _refuse(sequence)

    async def fail(self, sequence: GlobalSequence, retry_count: int, last_error: str) -> None:  # noqa: ARG002
        """Never called."""
        _refuse(sequence)

    async def bury(self, sequence: GlobalSequence, retry_count: int, last_error: str | None) -> None:  # noqa: ARG002
        """Never called."""
        _refuse(sequence)

    async def release(self, sequences: Sequence[GlobalSequence]) -> None:
        """Nothing can be in processing, so there is never anything to put back."""
        if sequences:
            _refuse(sequences[0])


class NoBacklog:
    """The Backlog port: no event waits for an in-process handler."""

    async def recover(self, error: str, error_of_several: str) -> int:  # noqa: ARG002
        """Nothing was left behind."""
        return 0

    async def pending(
        self,
        after: GlobalSequence,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        without: Collection[str] = (),  # noqa: ARG002
    ) -> list[Event]:
        """Nothing is pending."""
        return []

    async def pending_count(self, up_to: GlobalSequence) -> int:  # noqa: ARG002
        """Nothing is pending."""
        return 0

    async def claim(self, sequences: Sequence[GlobalSequence]) -> set[GlobalSequence]:  # noqa: ARG002
        """None of them is pending."""
        return set()

    async def settle_pending(self, sequences: Sequence[GlobalSequence]) -> int:  # noqa: ARG002
        """None of them is pending."""
        return 0

    def watch(self, on_change: Callable[[], None] | None) -> None:
        """There is nothing to tell."""


class NoDispatchLock:
    """The DispatchLock port: no process is the owner, since there is nothing to own."""

    def try_acquire(self) -> bool:
        """Never."""
        return False

    def release(self) -> None:
        """Nobody holds it."""


class NoSubscriptions:
    """The SubscriptionTable port: subscriptions without an id can't be made."""

    async def replace(self, rows: Sequence[SubscriptionRow]) -> None:
        """There are none."""
        assert not rows, "a store without in-process handlers has no table for them"

    async def list(self) -> list[SubscriptionRow]:
        """There are none."""
        return []


def _refuse(sequence: GlobalSequence) -> NoReturn:
    raise AssertionError(f"event {sequence} is in no handler's hands: this store has no in-process handlers")
