"""ports.SubscriptionTable: the rows are those of the owner."""

from datetime import timedelta

from postbus.events import SubscriptionRow
from postbus.ports import Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import NOON

pytestmark = on_embedded


def _row(id: str, seconds: float = 0.0) -> SubscriptionRow:
    return SubscriptionRow(id=id, event_type="order.*", created_at=NOON + timedelta(seconds=seconds))


class TestSubscriptionTable:
    async def test_a_new_store_has_no_subscriptions(self, store: Store) -> None:
        """Nothing to list is no error."""
        assert await store.subscriptions.list() == []

    async def test_rows_read_back_as_they_were_given(self, store: Store) -> None:
        """Id, pattern and moment."""
        await store.subscriptions.replace([_row("mail")])

        assert await store.subscriptions.list() == [_row("mail")]

    async def test_the_oldest_row_comes_first(self, store: Store) -> None:
        """Rows of one moment keep the order in which they were given."""
        rows = [_row("c", 2), _row("a"), _row("b2", 1), _row("b1", 1)]
        await store.subscriptions.replace(rows)

        assert [row.id for row in await store.subscriptions.list()] == ["a", "b2", "b1", "c"]

    async def test_the_latest_rows_are_the_only_ones(self, store: Store) -> None:
        """Those of an owner that is gone don't pile up."""
        await store.subscriptions.replace([_row("old"), _row("kept")])
        await store.subscriptions.replace([_row("kept"), _row("new", 1)])

        assert [row.id for row in await store.subscriptions.list()] == ["kept", "new"]

    async def test_no_rows_can_replace_the_rows(self, store: Store) -> None:
        """An owner without handlers leaves an empty table."""
        await store.subscriptions.replace([_row("mail")])
        await store.subscriptions.replace([])

        assert await store.subscriptions.list() == []

    async def test_a_listing_is_a_copy(self, store: Store) -> None:
        """Changing it changes no store, and neither does changing what was given."""
        rows = [_row("mail")]
        await store.subscriptions.replace(rows)
        rows.clear()
        (await store.subscriptions.list()).clear()

        assert await store.subscriptions.list() == [_row("mail")]
