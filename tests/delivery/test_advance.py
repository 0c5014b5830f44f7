"""Advance: how far a subscriber has come, whether its events are noted one by one or many at once."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from postbus import Event
from postbus.delivery.advance import Advance
from postbus.delivery.deliveries import sequence_of
from postbus.events import Checkpoint, Gap, GlobalSequence, SubscriberId
from postbus.policy.gaps import SubscriberState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# What becomes of each number: it was seen before, appears now, or is missing.
FATES = st.lists(st.sampled_from(["known", "new", "missing"]), min_size=1, max_size=40)


def event_at(number: int) -> Event:
    """An event of the log."""
    return Event(id=str(number), type="a", created_at=NOON, global_sequence=GlobalSequence(number))


def advance_in(fates: list[str], head: int) -> tuple[Advance, list[Event]]:
    """One at *head* with the gaps below it that its fates say, and the events of the page that it gets."""
    state = SubscriberState()
    for number, fate in enumerate(fates[:head], 1):
        if fate == "known":
            state.deliver(number)
    state.pass_to(head, () if state.head == head else [Gap(GlobalSequence(state.head + 1), head)])
    checkpoint = Checkpoint(
        subscriber_id=SubscriberId("s"),
        position=state.contiguous,
        head=state.head,
        open=state.open,
        event_id=None,
        updated_at=NOON,
        epoch=1,
    )
    advance = Advance(checkpoint)
    beyond = SubscriberState(head)
    new = [
        number for number, fate in enumerate(fates, 1) if fate == "new" or (fate == "known" and number > head)
    ]
    for number in new:
        if number > head:
            beyond.deliver(number)
    advance.begin_page(beyond.open)
    return advance, [event_at(number) for number in new]


@given(FATES, st.data())
def test_events_noted_many_at_once_lead_where_they_lead_one_by_one(
    fates: list[str], data: st.DataObject
) -> None:
    """Position, head and open gaps after each stretch are those after each of its events."""
    head = data.draw(st.integers(0, len(fates)))
    one_by_one, events = advance_in(fates, head)
    at_once, _ = advance_in(fates, head)
    start = 0

    while start < len(events):
        end = data.draw(st.integers(start + 1, len(events)))
        for event in events[start:end]:
            one_by_one.take(sequence_of(event))
        at_once.take_all(events[start:end])
        start = end

        assert at_once.position == one_by_one.position
        assert (at_once.head, at_once.contiguous) == (one_by_one.head, one_by_one.contiguous)


def test_no_events_lead_nowhere() -> None:
    """A stretch that was broken off at once."""
    advance, _ = advance_in(["known", "missing", "known"], 3)

    advance.take_all([])

    assert (advance.contiguous, advance.head) == (1, 3)
