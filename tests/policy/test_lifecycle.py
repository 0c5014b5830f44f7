"""Which moves an event's status may make."""

import itertools

import pytest

from postbus.events import EventStatus
from postbus.policy.lifecycle import ALLOWED_MOVES, can_move

PENDING, PROCESSING, DONE, DLQ = EventStatus
MOVES = {
    (PENDING, PROCESSING),
    (PENDING, DONE),
    (PROCESSING, DONE),
    (PROCESSING, DLQ),
    (PROCESSING, PENDING),
    (DLQ, PENDING),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(EventStatus, repeat=2)))
def test_only_the_moves_of_the_design_are_allowed(before: EventStatus, after: EventStatus) -> None:
    """Each pair of states is either one of the six moves, or forbidden."""
    assert can_move(before, after) is ((before, after) in MOVES)


def test_every_status_has_its_row() -> None:
    """A new status can't be forgotten in the table."""
    assert set(ALLOWED_MOVES) == set(EventStatus)


def test_no_event_can_be_lost_in_a_corner() -> None:
    """Every event can still reach done, wherever it is, and only done is the end."""
    reachable = {DONE}
    for _ in EventStatus:
        reachable |= {before for before, afters in ALLOWED_MOVES.items() if afters & reachable}

    assert reachable == set(EventStatus)
    assert [status for status, afters in ALLOWED_MOVES.items() if not afters] == [DONE]
