"""The subscriptions of the owner, in memory."""

from collections.abc import Sequence

from postbus.events import SubscriptionRow
from postbus.stores.memory.state import State


class InMemorySubscriptions:
    """Fulfils ports.SubscriptionTable."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def replace(self, rows: Sequence[SubscriptionRow]) -> None:
        """Make these the only rows."""
        self._state.check_open()
        self._state.subscriptions = sorted(rows, key=lambda row: row.created_at)

    async def list(self) -> list[SubscriptionRow]:
        """All rows, oldest first."""
        self._state.check_open()
        return self._state.subscriptions.copy()
