"""What every contract test does first: make drafts, store them, bring them into a status."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from postbus.errors import StoreError
from postbus.events import (
    Burial,
    Checkpoint,
    DeadLetter,
    Draft,
    Event,
    EventStatus,
    GlobalSequence,
    LogPosition,
    Progress,
    SubscriberId,
)
from postbus.ports import Store, WantedEvents
from tests.patience import PATIENCE

MAIL, STOCK = SubscriberId("mail"), SubscriberId("stock")
START = GlobalSequence(0)
BEGINNING = LogPosition(START)
NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def make_draft(
    event_type: str = "order.placed",
    payload: object = None,
    *,
    id: str | None = None,
    status: EventStatus | None = EventStatus.PROCESSING,
    created_at: datetime = NOON,
    metadata: dict[str, str] | None = None,
    is_idempotent: bool = False,
    stream_id: str | None = None,
    expected_version: int | None = None,
) -> Draft:
    """A draft as publish would make it."""
    return Draft(
        id=id if id is not None else str(uuid.uuid4()),
        type=event_type,
        payload_json=msgspec.json.encode(payload),
        metadata=metadata,
        created_at=created_at,
        status=status,
        is_idempotent=is_idempotent,
        stream_id=stream_id,
        expected_version=expected_version,
    )


def start_adding(store: Store, *drafts: Draft) -> asyncio.Future[list[GlobalSequence | None]]:
    """Call add; the future has one sequence number for each draft, or the error."""
    stored: asyncio.Future[list[GlobalSequence | None]] = asyncio.get_running_loop().create_future()

    def on_stored(
        sequences: Sequence[int | None], versions: Sequence[int | None], error: StoreError | None
    ) -> None:
        if error is None:
            stored.set_result([None if number is None else GlobalSequence(number) for number in sequences])
        else:
            assert (list(sequences), list(versions)) == ([], [])
            stored.set_exception(error)

    store.queue.add(drafts, on_stored)
    return stored


async def add(store: Store, *drafts: Draft) -> list[GlobalSequence | None]:
    """Store the drafts; one sequence number for each."""
    async with asyncio.timeout(PATIENCE):
        return await start_adding(store, *drafts)


async def add_new(store: Store, draft: Draft) -> GlobalSequence:
    """Store one draft whose id is not taken."""
    (sequence,) = await add(store, draft)
    assert sequence is not None
    return sequence


async def add_in_status(store: Store, status: EventStatus, draft: Draft) -> GlobalSequence:
    """Store one draft and lead it to *status* the way a dispatcher does."""
    is_pending = status is EventStatus.PENDING
    first = EventStatus.PENDING if is_pending else EventStatus.PROCESSING
    sequence = await add_new(store, msgspec.structs.replace(draft, status=first))
    if status is EventStatus.DONE:
        store.queue.finish(sequence)
    elif status is EventStatus.DLQ:
        await store.queue.bury(sequence, 4, '["first","second","third","fourth"]')
    assert (await store.get(draft.id)).status is status
    return sequence


async def add_dead_letter(store: Store, draft: Draft) -> GlobalSequence:
    """Store one draft and make it a dead letter."""
    return await add_in_status(store, EventStatus.DLQ, draft)


async def add_dead_event(store: Store, draft: Draft) -> Event:
    """Store one draft; where there are handlers it is a dead letter of theirs."""
    if not store.has_handlers:
        return (await append(store, draft))[0]
    await add_dead_letter(store, draft)
    return await store.get(draft.id)


async def status_of(store: Store, draft: Draft) -> EventStatus:
    """Where the event of this draft stands."""
    return (await store.get(draft.id)).status


async def append(store: Store, *drafts: Draft) -> list[Event]:
    """Store drafts that no handler waits for."""
    return await store.log.append(
        [msgspec.structs.replace(draft, status=EventStatus.DONE) for draft in drafts]
    )


def sequence_of(event: Event) -> GlobalSequence:
    """The number of a stored event."""
    assert event.global_sequence is not None
    return event.global_sequence


def after(number: int) -> LogPosition:
    """Everything up to this number is read."""
    return LogPosition(GlobalSequence(number))


def along(events: Sequence[Event]) -> Callable[[int], LogPosition]:
    """Where a checkpoint is after so many of these events."""
    return lambda count: after(sequence_of(events[count - 1]) if count else START)


async def read_to_the_end(
    store: Store, limit: int = 100, wanted: WantedEvents | None = None
) -> tuple[list[Event], GlobalSequence]:
    """Every wanted event of the log, page by page, and where its end is."""
    events: list[Event] = []
    position = START
    while True:
        page = await store.log.read(LogPosition(position), limit, wanted)
        assert len(page.events) <= limit
        events += page.events
        if page.up_to == position:
            return events, position
        assert page.up_to > position
        position = page.up_to


async def bury(store: Store, owner: Checkpoint, event: Event, *errors: str) -> DeadLetter:
    """Make an event a dead letter of a durable subscriber."""
    await store.checkpoints.save(
        Progress(
            subscriber_id=owner.subscriber_id,
            epoch=owner.epoch,
            position=sequence_of(event),
            event_id=event.id,
            burials=[Burial(event, list(errors or ("boom",)))],
        )
    )
    page = await store.dead_letters.page(1000, 0, owner.subscriber_id)
    (dead_letter,) = [each for each in page.events if each.id == event.id]
    return dead_letter


async def is_called_soon(is_called: asyncio.Event) -> bool:
    """Whether it happens within a time that is long for a wake-up."""
    try:
        async with asyncio.timeout(5):
            return await is_called.wait()
    except TimeoutError:
        return False
