"""0012, unit tests: the contiguous checkpoint, its gaps, and the configured timeout."""

from collections.abc import Sequence

from postbus.config import ReliableDeliveryConfig
from postbus.events import Gap, WriterSample
from postbus.policy.gaps import GapTimer, SubscriberState
from postbus.policy.horizon import WriterHorizon

GAP_TIMEOUT = 5.0


def advance_contiguous_checkpoint(
    state: SubscriberState, visible: Sequence[int], timer: GapTimer, now: float
) -> None:
    """The algorithm of the specification, with what is visible in the log at *now*."""
    state.deliver_page([sequence for sequence in visible if not state.is_delivered(sequence)])
    timer.note(state, now)
    for gap in timer.overdue(state, now):
        state.settle(gap.last)


def test_advance_contiguous_no_gaps() -> None:
    """checkpoint=5, visible=[6,7,8] → advances to 8."""
    state = SubscriberState(5)
    advance_contiguous_checkpoint(state, [6, 7, 8], GapTimer(GAP_TIMEOUT), now=0.0)

    assert state.contiguous == 8
    assert state.open == ()


def test_advance_contiguous_with_gap() -> None:
    """checkpoint=5, visible=[7,8] → stays at 5, records the gap at 6."""
    state, timer = SubscriberState(5), GapTimer(GAP_TIMEOUT)
    advance_contiguous_checkpoint(state, [7, 8], timer, now=100.0)

    assert state.contiguous == 5
    assert state.open == (Gap(6, 6),)
    assert timer.due_at == 105.0


def test_advance_contiguous_gap_timeout() -> None:
    """checkpoint=5, visible=[7,8], gap at 6 aged past the timeout → advances to 8."""
    state, timer = SubscriberState(5), GapTimer(GAP_TIMEOUT)
    advance_contiguous_checkpoint(state, [7, 8], timer, now=100.0)
    advance_contiguous_checkpoint(state, [7, 8], timer, now=104.9)

    assert state.contiguous == 5

    advance_contiguous_checkpoint(state, [7, 8], timer, now=105.1)

    assert state.contiguous == 8
    assert state.open == ()


def test_advance_contiguous_with_processed_ahead() -> None:
    """checkpoint=5, processed ahead={6}, visible=[7,8] → advances to 8."""
    state, timer = SubscriberState(5), GapTimer(GAP_TIMEOUT)
    state.deliver(6)
    advance_contiguous_checkpoint(state, [7, 8], timer, now=100.0)

    assert state.contiguous == 8

    beyond_a_gap = SubscriberState(4)
    beyond_a_gap.deliver(6)
    advance_contiguous_checkpoint(beyond_a_gap, [5, 6, 7, 8], timer, now=100.0)

    assert beyond_a_gap.contiguous == 8


def test_advance_contiguous_multiple_gaps() -> None:
    """checkpoint=5, visible=[8,10], nothing processed ahead → stays at 5, records gaps at 6 and 7, and 9."""
    state, timer = SubscriberState(5), GapTimer(GAP_TIMEOUT)
    advance_contiguous_checkpoint(state, [8, 10], timer, now=100.0)

    assert state.contiguous == 5
    assert state.open == (Gap(6, 7), Gap(9, 9))

    # All at once and not one after the other.
    advance_contiguous_checkpoint(state, [8, 10], timer, now=105.0)

    assert state.contiguous == 10


def test_a_rolled_back_number_is_passed_by_proof_before_any_timeout() -> None:
    """checkpoint=5, visible=[7,8], nobody at work that could still use 6 → advances to 8."""
    state, timer, horizon = SubscriberState(5), GapTimer(GAP_TIMEOUT), WriterHorizon()
    advance_contiguous_checkpoint(state, [7, 8], timer, now=100.0)
    state.settle(horizon.observe(WriterSample("server", high=8, holders=())))

    assert state.contiguous == 8


def test_a_number_is_waited_for_as_long_as_somebody_can_use_it() -> None:
    """checkpoint=5, visible=[7,8], a writer open for an hour → stays at 5, and 6 is delivered in the end."""
    state, horizon = SubscriberState(5), WriterHorizon()
    state.deliver_page([7, 8])
    for _ in range(3600):
        state.settle(horizon.observe(WriterSample("server", high=8, holders=("3/41",))))

    assert state.contiguous == 5
    assert state.deliver(6)
    assert state.contiguous == 8


def test_subscriber_state_new_defaults() -> None:
    """A new state is at its checkpoint, with nothing ahead and no gap."""
    state = SubscriberState(42)

    assert (state.contiguous, state.head, state.open) == (42, 42, ())
    assert not state.is_waiting_for_gap
    assert state.newest_gap is None
    assert SubscriberState().contiguous == 0


def test_default_config_has_gap_timeout() -> None:
    """Five seconds."""
    assert ReliableDeliveryConfig().gap_timeout == 5.0


def test_custom_gap_timeout() -> None:
    """A custom value is kept."""
    assert ReliableDeliveryConfig(gap_timeout=30.0).gap_timeout == 30.0
