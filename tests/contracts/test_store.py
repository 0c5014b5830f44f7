"""ports.Store: opening, closing and opening again lose nothing."""

from collections.abc import Awaitable, Callable

import pytest

from postbus.errors import EventNotFoundError, StoreClosedError
from postbus.events import EventStatus, GlobalSequence, Progress, SubscriptionRow
from postbus.ports import Store
from tests.contracts.backends import on_embedded
from tests.contracts.steps import (
    BEGINNING,
    MAIL,
    NOON,
    add,
    add_in_status,
    add_new,
    along,
    make_draft,
    start_adding,
    status_of,
)

_ONE = GlobalSequence(1)
_PROGRESS = Progress(subscriber_id=MAIL, epoch=1, position=_ONE)


async def _finish(store: Store) -> None:
    store.queue.finish(_ONE)


_CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "add": lambda store: add(store, make_draft()),
    "page": lambda store: store.dead_letters.page(10, 0, None),
    "revive": lambda store: store.dead_letters.revive("order-42"),
    "revive_all": lambda store: store.dead_letters.revive_all(None, None),
    "purge": lambda store: store.dead_letters.purge(NOON),
    "get": lambda store: store.get("order-42"),
    "get a dead letter": lambda store: store.dead_letters.get("order-42"),
    "resolve": lambda store: store.dead_letters.resolve("order-42", "anna", None),
    "wanted_retries": lambda store: store.dead_letters.wanted_retries(MAIL, 10),
    "append": lambda store: store.log.append([make_draft()]),
    "read": lambda store: store.log.read(BEGINNING, 10, None),
    "read_stream": lambda store: store.log.read_stream("a", 1, None),
    "get from the log": lambda store: store.log.get("order-42"),
    "head": lambda store: store.log.head(),
    "position_at": lambda store: store.log.position_at(NOON),
    "purge an event": lambda store: store.log.purge("order-42", "anna"),
    "load": lambda store: store.checkpoints.load(MAIL),
    "list checkpoints": lambda store: store.checkpoints.list(),
    "claim a checkpoint": lambda store: store.checkpoints.claim(MAIL, BEGINNING),
    "save": lambda store: store.checkpoints.save(_PROGRESS),
    "process": lambda store: store.checkpoints.process(
        MAIL, 1, [], lambda *_: None, along([]), timeout=1, time_budget=1
    ),
    "release a checkpoint": lambda store: store.checkpoints.release(MAIL, 1),
    "get a state": lambda store: store.states.get("orders", "42"),
    "put a state": lambda store: store.states.put("orders", "42", b"1"),
    "items": lambda store: store.states.items("orders", "", 10),
}
_CALLS_FOR_HANDLERS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "finish": _finish,
    "fail": lambda store: store.queue.fail(_ONE, 1, '["boom"]'),
    "bury": lambda store: store.queue.bury(_ONE, 1, '["boom"]'),
    "release": lambda store: store.queue.release([_ONE]),
    "recover": lambda store: store.backlog.recover("ended", "ended"),
    "pending": lambda store: store.backlog.pending(GlobalSequence(0), 10),
    "claim": lambda store: store.backlog.claim([_ONE]),
    "settle_pending": lambda store: store.backlog.settle_pending([_ONE]),
    "replace": lambda store: store.subscriptions.replace([]),
    "list": lambda store: store.subscriptions.list(),
}


async def _refuses_when_closed(store: Store, call: Callable[[Store], Awaitable[object]]) -> None:
    await add(store, make_draft(id="order-42"))
    before = await store.get("order-42")
    await store.close()
    with pytest.raises(StoreClosedError):
        await call(store)
    await store.open()

    assert await store.get("order-42") == before
    assert await add(store, make_draft()) == [2]
    assert await store.checkpoints.list() == []
    assert await store.states.items("orders", "", 10) == []


class TestStore:
    async def test_an_unknown_event_is_not_found(self, store: Store) -> None:
        """The error names the id."""
        with pytest.raises(EventNotFoundError) as caught:
            await store.get("nobody")

        assert caught.value.event_id == "nobody"

    async def test_opening_an_open_store_changes_nothing(self, store: Store) -> None:
        """Idempotent."""
        draft = make_draft()
        await add(store, draft)
        before = await store.get(draft.id)
        await store.open()

        assert await store.get(draft.id) == before
        assert await add(store, make_draft()) == [2]

    async def test_closing_a_closed_store_changes_nothing(self, store: Store) -> None:
        """Idempotent, and it can still be opened."""
        draft = make_draft()
        await add(store, draft)
        before = await store.get(draft.id)
        await store.close()
        await store.close()
        await store.open()

        assert await store.get(draft.id) == before

    @pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
    async def test_a_closed_store_refuses_every_call(
        self, store: Store, call: Callable[[Store], Awaitable[object]]
    ) -> None:
        """With the error that says so, and without changing anything."""
        await _refuses_when_closed(store, call)

    @on_embedded
    @pytest.mark.parametrize("call", _CALLS_FOR_HANDLERS.values(), ids=_CALLS_FOR_HANDLERS)
    async def test_a_closed_store_refuses_every_call_for_handlers(
        self, store: Store, call: Callable[[Store], Awaitable[object]]
    ) -> None:
        """Where there are any."""
        await _refuses_when_closed(store, call)

    @on_embedded
    async def test_a_store_that_is_opened_again_has_everything(self, store: Store) -> None:
        """Events in every status, their attempts, the subscriptions and the count of numbers."""
        drafts = [make_draft(id=status.value) for status in EventStatus]
        for status, draft in zip(EventStatus, drafts, strict=True):
            await add_in_status(store, status, draft)
        row = SubscriptionRow(id="mail", event_type="order.*", created_at=NOON)
        await store.subscriptions.replace([row])
        before = [await store.get(draft.id) for draft in drafts]
        await store.close()
        await store.open()

        assert [await store.get(draft.id) for draft in drafts] == before
        pending = await store.backlog.pending(GlobalSequence(0), 10)
        dead = await store.dead_letters.page(10, 0, None)
        assert [event.id for event in (*pending, *dead.events)] == ["pending", "dlq"]
        assert await store.subscriptions.list() == [row]
        assert await add(store, make_draft()) == [len(drafts) + 1]

    async def test_what_was_added_just_before_closing_is_stored(self, store: Store) -> None:
        """Closing writes what is waiting, and the publisher hears of it."""
        drafts = [make_draft() for _ in range(20)]
        futures = [start_adding(store, draft) for draft in drafts]
        await store.close()
        stored = [await future for future in futures]
        await store.open()

        assert stored == [[number] for number in range(1, 21)]
        assert [[(await store.get(draft.id)).global_sequence] for draft in drafts] == stored

    @on_embedded
    async def test_what_was_finished_just_before_closing_is_done(self, store: Store) -> None:
        """Soon means at the latest now."""
        draft = make_draft()
        store.queue.finish(await add_new(store, draft))
        await store.close()
        await store.open()

        assert await status_of(store, draft) is EventStatus.DONE
