"""ports.CheckpointStore: a checkpoint moves forward only, with all that belongs to it, for its owner only."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postbus.errors import DuplicateEventIdError, SubscriberFencedError, WrongExpectedVersionError
from postbus.events import (
    BatchOutcome,
    Burial,
    Checkpoint,
    Draft,
    Event,
    EventStatus,
    GlobalSequence,
    Progress,
    RetryOutcome,
    StateWrite,
    SubscriberId,
)
from postbus.ports import Store
from postbus.testing import ManualClock
from tests.contracts.backends import Backend, on_embedded, open_store
from tests.contracts.steps import (
    BEGINNING,
    MAIL,
    START,
    STOCK,
    after,
    along,
    append,
    bury,
    is_called_soon,
    make_draft,
    read_to_the_end,
    sequence_of,
    status_of,
)


def _progress(owner: Checkpoint, position: int, event_id: str | None = None) -> Progress:
    return Progress(
        subscriber_id=owner.subscriber_id,
        epoch=owner.epoch,
        position=GlobalSequence(position),
        event_id=event_id,
    )


async def _position(store: Store) -> tuple[int, str | None]:
    checkpoint = await store.checkpoints.load(MAIL)
    assert checkpoint is not None
    return checkpoint.position, checkpoint.event_id


class TestClaim:
    async def test_a_new_subscriber_begins_where_it_wants_to(self, store: Store, clock: ManualClock) -> None:
        """Nobody owned it before, so nobody was interrupted."""
        claimed = await store.checkpoints.claim(MAIL, after(7))

        assert (claimed.subscriber_id, claimed.position, claimed.event_id) == (MAIL, 7, None)
        assert (claimed.was_interrupted, claimed.attempt_sequence, claimed.attempt_count) == (False, None, 0)
        assert claimed.updated_at == clock.now()
        loaded = await store.checkpoints.load(MAIL)
        assert loaded is not None
        assert (loaded.position, loaded.epoch) == (7, claimed.epoch)

    async def test_a_known_subscriber_goes_on_where_it_was(self, store: Store) -> None:
        """The start counts only where there is no checkpoint, whether it lies before or behind."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.save(_progress(owner, 5, "event-5"))
        claims = [await store.checkpoints.claim(MAIL, after(start)) for start in (0, 9)]

        assert [(claimed.position, claimed.event_id) for claimed in claims] == [(5, "event-5")] * 2

    async def test_every_ownership_has_a_higher_epoch(self, store: Store) -> None:
        """Released or not, and after the store was closed."""
        epochs = [(await store.checkpoints.claim(MAIL, BEGINNING)).epoch for _ in range(2)]
        await store.checkpoints.release(MAIL, epochs[-1])
        epochs.append((await store.checkpoints.claim(MAIL, BEGINNING)).epoch)
        await store.close()
        await store.open()
        epochs.append((await store.checkpoints.claim(MAIL, BEGINNING)).epoch)

        assert epochs == sorted(set(epochs))

    async def test_of_claims_made_at_once_each_has_an_epoch_of_its_own(self, store: Store) -> None:
        """Only the latest can write."""
        claims = await asyncio.gather(*[store.checkpoints.claim(MAIL, BEGINNING) for _ in range(10)])

        assert len({claimed.epoch for claimed in claims}) == 10

    async def test_it_tells_whether_the_owner_before_let_go(self, store: Store) -> None:
        """After an orderly end nobody has to suspect the next event."""
        first = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.release(MAIL, first.epoch)
        second = await store.checkpoints.claim(MAIL, BEGINNING)
        third = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.close()
        await store.open()
        fourth = await store.checkpoints.claim(MAIL, BEGINNING)

        assert [claimed.was_interrupted for claimed in (second, third, fourth)] == [False, True, True]

    async def test_attempts_written_down_before_are_known_to_the_next_owner(self, store: Store) -> None:
        """An event that ends its process again and again comes to its end."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.save(
            Progress(
                subscriber_id=MAIL,
                epoch=owner.epoch,
                position=GlobalSequence(3),
                attempt_sequence=GlobalSequence(4),
                attempt_count=2,
            )
        )
        claimed = await store.checkpoints.claim(MAIL, BEGINNING)

        assert (claimed.position, claimed.attempt_sequence, claimed.attempt_count) == (3, 4, 2)

    async def test_subscribers_know_nothing_of_each_other(self, store: Store) -> None:
        """Each has its own position and epoch."""
        mail = await store.checkpoints.claim(MAIL, BEGINNING)
        stock = await store.checkpoints.claim(STOCK, after(4))
        await store.checkpoints.claim(STOCK, BEGINNING)
        await store.checkpoints.save(_progress(mail, 2))

        with pytest.raises(SubscriberFencedError):
            await store.checkpoints.save(_progress(stock, 5))
        assert [(each.subscriber_id, each.position) for each in await store.checkpoints.list()] == [
            (MAIL, 2),
            (STOCK, 4),
        ]


class TestLoad:
    async def test_an_unknown_subscriber_has_no_checkpoint(self, store: Store) -> None:
        """None, and not 0: it has not begun."""
        assert await store.checkpoints.load(MAIL) is None
        assert await store.checkpoints.list() == []

    async def test_all_are_listed_by_their_id(self, store: Store) -> None:
        """As they are loaded."""
        names = [SubscriberId(name) for name in ("b", "ü", "a:2", "B", "a")]
        for name in names:
            await store.checkpoints.claim(name, BEGINNING)

        listed = await store.checkpoints.list()
        assert [each.subscriber_id for each in listed] == sorted(names)
        assert listed == [await store.checkpoints.load(name) for name in sorted(names)]


class TestSave:
    async def test_a_saved_checkpoint_is_loaded_also_after_the_store_was_closed(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Position, event and moment."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await clock.advance(5)
        await store.checkpoints.save(_progress(owner, 7, "event-7"))
        before = await store.checkpoints.load(MAIL)
        await store.close()
        await store.open()

        assert before is not None
        assert (before.position, before.event_id, before.updated_at) == (7, "event-7", clock.now())
        assert before.epoch == owner.epoch
        assert await store.checkpoints.load(MAIL) == before

    async def test_a_checkpoint_never_moves_back(self, store: Store) -> None:
        """A position behind the present one leaves it where it is, its event too."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.save(_progress(owner, 7, "event-7"))
        await store.checkpoints.save(_progress(owner, 5, "event-5"))

        assert await _position(store) == (7, "event-7")

    async def test_what_else_is_saved_with_a_position_behind_is_written(self, store: Store) -> None:
        """Only the position stays: the outcome of a retry has no position of its own."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.save(_progress(owner, 7, "event-7"))
        await store.checkpoints.save(
            Progress(
                subscriber_id=MAIL,
                epoch=owner.epoch,
                position=START,
                states=[StateWrite("orders", "42", b'"paid"')],
            )
        )

        assert await store.states.get("orders", "42") == b'"paid"'
        assert await _position(store) == (7, "event-7")

    async def test_events_that_were_not_wanted_move_the_position_alone(self, store: Store) -> None:
        """The last event that was processed stays known."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.save(_progress(owner, 7, "event-7"))
        await store.checkpoints.save(_progress(owner, 9))

        assert await _position(store) == (9, "event-7")

    async def test_an_attempt_is_forgotten_with_the_next_save(self, store: Store) -> None:
        """It counts for the event that comes next, and for no other."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        for attempt, count in ((GlobalSequence(1), 1), (None, 0)):
            await store.checkpoints.save(
                Progress(
                    subscriber_id=MAIL,
                    epoch=owner.epoch,
                    position=START,
                    attempt_sequence=attempt,
                    attempt_count=count,
                )
            )
            loaded = await store.checkpoints.load(MAIL)
            assert loaded is not None
            assert (loaded.attempt_sequence, loaded.attempt_count) == (attempt, count)

    async def test_states_are_put_and_deleted(self, store: Store) -> None:
        """In the order in which they are given."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.states.put("orders", "old", b"1")
        writes = [
            StateWrite("orders", "old", None),
            StateWrite("orders", "new", b"2"),
            StateWrite("orders", "new", b"3"),
            StateWrite("others", "new", b"4"),
            StateWrite("orders", "nobody", None),
        ]
        await store.checkpoints.save(
            Progress(subscriber_id=MAIL, epoch=owner.epoch, position=START, states=writes)
        )

        assert await store.states.items("orders", "", 10) == [("new", b"3")]
        assert await store.states.items("others", "", 10) == [("new", b"4")]

    async def test_drafts_become_events_in_order_and_wake_who_waits_for_them(self, store: Store) -> None:
        """Subscribers look at once."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        has_grown = asyncio.Event()
        store.log.watch(has_grown.set)
        drafts = [make_draft(id="a", stream_id="s", expected_version=0), make_draft(id="b", stream_id="s")]
        await store.checkpoints.save(
            Progress(subscriber_id=MAIL, epoch=owner.epoch, position=START, drafts=drafts)
        )

        assert await is_called_soon(has_grown)
        events, _ = await read_to_the_end(store)
        assert [(event.id, event.stream_version) for event in events] == [("a", 1), ("b", 2)]

    @on_embedded
    async def test_drafts_that_are_pending_wake_the_handlers(self, store: Store) -> None:
        """They are delivered as if they had been published."""
        store.dispatch_lock.try_acquire()
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        is_pending = asyncio.Event()
        store.backlog.watch(is_pending.set)
        drafts = [make_draft(status=EventStatus.DONE), make_draft(status=EventStatus.PENDING)]
        await store.checkpoints.save(
            Progress(subscriber_id=MAIL, epoch=owner.epoch, position=START, drafts=drafts)
        )

        assert await is_called_soon(is_pending)
        assert [await status_of(store, draft) for draft in drafts] == [EventStatus.DONE, EventStatus.PENDING]

    async def test_a_given_id_that_is_there_is_a_success_that_stores_nothing(self, store: Store) -> None:
        """An observer who publishes again after a crash publishes once."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        draft = make_draft(id="once", status=EventStatus.DONE, is_idempotent=True)
        for position in (1, 2):
            await store.checkpoints.save(
                Progress(
                    subscriber_id=MAIL, epoch=owner.epoch, position=GlobalSequence(position), drafts=[draft]
                )
            )

        assert len((await read_to_the_end(store))[0]) == 1
        assert (await _position(store))[0] == 2

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(positions=st.lists(st.integers(0, 2**62), min_size=1, max_size=12))
    def test_in_any_order_of_saves_the_highest_position_stays(
        self, backend: Backend, positions: list[int]
    ) -> None:
        """Never back, whoever is late."""

        async def save_all() -> list[int]:
            seen = []
            async with open_store(backend, ManualClock()) as store:
                owner = await store.checkpoints.claim(MAIL, BEGINNING)
                for position in positions:
                    await store.checkpoints.save(_progress(owner, position, str(position)))
                    seen.append((await _position(store))[0])
            return seen

        seen = asyncio.run(save_all())
        assert seen == [max(positions[: count + 1]) for count in range(len(positions))]


async def _stale(store: Store) -> Checkpoint:
    stale = await store.checkpoints.claim(MAIL, BEGINNING)
    await store.checkpoints.claim(MAIL, BEGINNING)
    return stale


async def _never_claimed(store: Store) -> Checkpoint:
    claimed = await store.checkpoints.claim(STOCK, BEGINNING)
    return Checkpoint(subscriber_id=MAIL, position=START, epoch=claimed.epoch, updated_at=claimed.updated_at)


async def _from_the_future(store: Store) -> Checkpoint:
    claimed = await store.checkpoints.claim(MAIL, BEGINNING)
    return Checkpoint(
        subscriber_id=MAIL, position=START, epoch=claimed.epoch + 1, updated_at=claimed.updated_at
    )


async def _whole_progress(store: Store, owner: Checkpoint) -> Progress:
    """A progress with something of everything, for the one event in the log."""
    (event,) = (await store.log.read(BEGINNING, 1, None)).events
    retried = (await store.dead_letters.page(1, 0, STOCK)).events[0]
    return Progress(
        subscriber_id=owner.subscriber_id,
        epoch=owner.epoch,
        position=sequence_of(event),
        event_id=event.id,
        attempt_sequence=GlobalSequence(2),
        attempt_count=1,
        burials=[Burial(event, ["boom"])],
        retries=[RetryOutcome(retried.dead_letter_id, None)],
        states=[StateWrite("orders", "42", b"1")],
        drafts=[make_draft(stream_id="new")],
    )


async def _everything(store: Store) -> list[object]:
    """All that a save could have changed."""
    return [
        await store.checkpoints.list(),
        await store.dead_letters.page(10, 0, None),
        await store.dead_letters.wanted_retries(STOCK, 10),
        await store.states.items("orders", "", 10),
        await read_to_the_end(store),
        await store.log.read_stream("new", 1, None),
    ]


class TestAllOrNothing:
    @pytest.fixture(autouse=True)
    async def with_a_dead_letter(self, store: Store) -> None:
        """An event in the log that is a dead letter of another subscriber, wanted for a retry."""
        (event,) = await append(store, make_draft(id="first"))
        dead = await bury(store, await store.checkpoints.claim(STOCK, BEGINNING), event)
        await store.dead_letters.revive(dead.dead_letter_id)

    @pytest.mark.parametrize("make_owner", [_stale, _never_claimed, _from_the_future])
    async def test_nothing_is_written_for_who_is_not_the_owner(
        self, store: Store, make_owner: Callable[[Store], Awaitable[Checkpoint]]
    ) -> None:
        """Neither the checkpoint nor dead letters, states or events; the error says who and since when."""
        owner = await make_owner(store)
        progress = await _whole_progress(store, owner)
        before = await _everything(store)
        with pytest.raises(SubscriberFencedError) as caught:
            await store.checkpoints.save(progress)

        assert (caught.value.subscriber_id, caught.value.epoch) == (MAIL, owner.epoch)
        assert await _everything(store) == before

    @pytest.mark.parametrize(
        ("draft", "error"),
        [
            (make_draft(id="first"), DuplicateEventIdError),
            (make_draft(stream_id="new", expected_version=5), WrongExpectedVersionError),
        ],
        ids=["duplicate", "version"],
    )
    async def test_nothing_is_written_if_a_draft_is_refused(
        self, store: Store, draft: Draft, error: type[Exception]
    ) -> None:
        """Neither the drafts before it nor anything else."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        whole = await _whole_progress(store, owner)
        progress = msgspec.structs.replace(whole, drafts=[*whole.drafts, draft])
        before = await _everything(store)
        with pytest.raises(error):
            await store.checkpoints.save(progress)

        assert await _everything(store) == before

    async def test_all_of_it_is_written_for_the_owner(self, store: Store) -> None:
        """The same progress, in good hands; the retry of another subscriber's dead letter is not its own."""
        progress = await _whole_progress(store, await store.checkpoints.claim(MAIL, BEGINNING))
        await store.checkpoints.save(progress)

        assert await _position(store) == (progress.position, "first")
        assert (await store.dead_letters.page(10, 0, MAIL)).total == 1
        assert await store.states.get("orders", "42") == b"1"
        assert len(await store.log.read_stream("new", 1, None)) == 1
        assert (await store.dead_letters.page(10, 0, STOCK)).total == 1

    async def test_a_save_that_is_refused_spoils_no_other_made_at_the_same_moment(self, store: Store) -> None:
        """They may share a commit, never a fate."""
        stale = await store.checkpoints.claim(MAIL, BEGINNING)
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        saves = [
            store.checkpoints.save(_progress(stale if number % 2 else owner, number)) for number in range(20)
        ]
        outcomes = await asyncio.gather(*saves, return_exceptions=True)

        assert [isinstance(outcome, SubscriberFencedError) for outcome in outcomes] == [False, True] * 10
        assert (await _position(store))[0] == 18


class TestRelease:
    async def test_who_is_not_the_owner_any_more_releases_nothing(self, store: Store) -> None:
        """The present owner is still known to be at work."""
        stale = await _stale(store)
        await store.checkpoints.release(MAIL, stale.epoch)

        assert (await store.checkpoints.claim(MAIL, BEGINNING)).was_interrupted

    async def test_an_unknown_subscriber_can_be_released(self, store: Store) -> None:
        """Nothing happens."""
        await store.checkpoints.release(MAIL, 1)

        assert await store.checkpoints.load(MAIL) is None

    async def test_a_release_keeps_the_position(self, store: Store) -> None:
        """It is the end of an ownership, not of the subscriber."""
        owner = await store.checkpoints.claim(MAIL, BEGINNING)
        await store.checkpoints.save(_progress(owner, 3, "event-3"))
        await store.checkpoints.release(MAIL, owner.epoch)
        await store.checkpoints.release(MAIL, owner.epoch)

        assert await _position(store) == (3, "event-3")

    async def test_a_stale_owner_cannot_process(self, store: Store) -> None:
        """No handler is called."""
        events = await append(store, make_draft())
        stale = await _stale(store)
        called: list[Event] = []

        async def process(epoch: int) -> BatchOutcome:
            return await store.checkpoints.process(
                MAIL,
                epoch,
                events,
                lambda event, _: called.append(event),
                along(events),
                timeout=5,
                time_budget=5,
            )

        with pytest.raises(SubscriberFencedError):
            await process(stale.epoch)
        assert called == []
        assert (await _position(store))[0] == START
