"""EventLog.purge: the payload is gone from everywhere, the fact that it happened stays."""

import pytest

from postbus.errors import EventNotFoundError, InvalidEventFieldError
from postbus.events import Event, EventStatus
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import on_embedded
from tests.contracts.steps import (
    BEGINNING,
    MAIL,
    START,
    add_dead_event,
    add_in_status,
    append,
    bury,
    make_draft,
    sequence_of,
)

SECRET = {"name": "Anna"}


class TestPurge:
    async def test_a_purged_event_is_still_read_everywhere_without_its_payload(
        self, store: Store, clock: ManualClock
    ) -> None:
        """By id, in the log and in its stream; with who took it away and when, all else as it was."""
        (before, _) = await append(
            store,
            make_draft(payload=SECRET, id="gone", metadata={"source": "web"}, stream_id="customer-7"),
            make_draft(payload="kept"),
        )
        await clock.advance(5)
        await store.log.purge("gone", "anna")

        event = await store.log.get("gone")
        assert (event.payload, event.purger_id, event.purged_at) == (None, "anna", clock.now())
        changed = {"payload", "purger_id", "purged_at"}
        for name in set(Event.__struct_fields__) - changed:
            assert getattr(event, name) == getattr(before, name)
        log = (await store.log.read(BEGINNING, 10, None)).events
        assert ([each.payload for each in log], log[0]) == ([None, "kept"], event)
        assert await store.log.read_stream("customer-7", 1, None) == [event]

    async def test_the_payload_is_gone_from_the_dead_letters_too(self, store: Store) -> None:
        """Of the handlers, if there are any, and of every subscriber: listed, found, waiting for a retry."""
        event = await add_dead_event(store, make_draft(payload=SECRET, id="gone"))
        dead = await bury(store, await store.checkpoints.claim(MAIL, BEGINNING), event)
        await store.dead_letters.revive(dead.dead_letter_id)
        await store.log.purge("gone", "anna")

        listed = (await store.dead_letters.page(10, 0, None)).events
        found = [await store.dead_letters.get("gone"), await store.dead_letters.get(dead.dead_letter_id)]
        wanted = await store.dead_letters.wanted_retries(MAIL, 10)
        assert (len(listed), len(wanted)) == (1 + store.has_handlers, 1)
        assert sequence_of(found[1]) == sequence_of(event)
        for each in (*listed, *found, *wanted):
            assert (each.payload, each.purger_id) == (None, "anna")

    async def test_who_purges_it_again_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        """The first who did it stays on record."""
        await append(store, make_draft(payload=SECRET, id="gone"))
        await store.log.purge("gone", "anna")
        first = await store.get("gone")
        await clock.advance(5)
        await store.log.purge("gone", "bert")

        assert await store.get("gone") == first

    async def test_an_unknown_event_cannot_be_purged(self, store: Store) -> None:
        """The error names the id."""
        with pytest.raises(EventNotFoundError) as caught:
            await store.log.purge("nobody", "anna")

        assert caught.value.event_id == "nobody"

    @pytest.mark.parametrize("status", EventStatus)
    @on_embedded
    async def test_a_purge_changes_no_status(self, store: Store, status: EventStatus) -> None:
        """What waits for a handler still does, with no payload."""
        await add_in_status(store, status, make_draft(payload=SECRET, id="gone"))
        await store.log.purge("gone", "anna")

        event = await store.get("gone")
        assert (event.status, event.payload) == (status, None)
        pending = await store.backlog.pending(START, 10)
        assert pending == ([event] if status is EventStatus.PENDING else [])

    async def test_a_purged_event_can_become_a_dead_letter_without_its_payload_coming_back(
        self, store: Store
    ) -> None:
        """A subscriber may have read it just before."""
        (event,) = await append(store, make_draft(payload=SECRET, id="gone"))
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.log.purge("gone", "anna")
        dead = await bury(store, owner, event)

        assert (dead.payload, dead.purger_id) == (None, "anna")

    async def test_users_purge_through_the_store(self, store: Store) -> None:
        """bus.store.purge."""
        await append(store, make_draft(payload=SECRET, id="gone"))
        await store.purge("gone", "anna")

        event = await store.get("gone")
        assert (event.payload, event.purger_id) == (None, "anna")

    @pytest.mark.parametrize("purger_id", ["", None, 7])
    async def test_nobody_purges_without_a_name(self, store: Store, purger_id: str) -> None:
        """Somebody answers for it; else nothing is taken away."""
        await append(store, make_draft(payload=SECRET, id="kept"))
        with pytest.raises(InvalidEventFieldError, match="purger_id"):
            await store.purge("kept", purger_id)

        assert (await store.get("kept")).payload == SECRET
