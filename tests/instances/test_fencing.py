"""An instance that stood still comes back: whatever it still writes is refused, and it stands by.

What it was at when it stopped is finished by its handler after another instance has taken over.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.end_to_end.children.instance import BEGAN
from tests.end_to_end.history import History
from tests.end_to_end.processes import wait_until
from tests.instances.steps import AT_WORK, EFFECTS, ID, Instance, handled, look, rows, wait_until_handled

FAILOVER_TIMEOUT = 2.0
_CHECKPOINT = "SELECT last_global_sequence, last_event_id, epoch FROM postbus.event_bus_checkpoints"


class Pair:
    """Two instances, of which the first has stood still in its first event and the second has taken over."""

    def __init__(self, dsn: str, history: History, first: Instance, second: Instance) -> None:
        self.dsn, self.history, self.first, self.second = dsn, history, first, second
        self.event_ids: list[str] = []

    def change(self) -> None:
        """From the first, in the middle of an event, to the second, who gets through it."""
        self.first.start(*AT_WORK)
        self.second.start("standby")
        self.event_ids += self.first.ask("publish")
        wait_until(lambda: self.history.of(f"{BEGAN}-{ID}-by-first"), "the first is at an event")
        self.first.stand_still()
        self.second.ask("release")
        wait_until_handled(self.history, "second", "the second has taken over")
        self.second.ask("caught_up", id=ID)

    def come_back(self) -> None:
        """The first goes on: its handler ends, what it writes is refused, and it is a standby."""
        self.first.go_on()
        self.first.ask("release")
        wait_until(lambda: handled(self.history, "first"), "the handler of the first has come to its end")
        self.first.wait_for_state("standby")

    def change_back(self) -> None:
        """The second dies: the first is well, and takes over again."""
        self.event_ids += self.second.ask("publish")
        self.second.ask("caught_up", id=ID)
        self.second.kill()
        self.first.wait_for_state(*AT_WORK)
        self.event_ids += self.first.ask("publish")
        self.first.ask("caught_up", id=ID)


@contextmanager
def pair(dsn: str, history: History, first_kind: str, second_kind: str) -> Iterator[Pair]:
    """Both, for the length of the block."""
    folder = history.path.parent
    with (
        Instance(dsn, folder, "first", failover_timeout=FAILOVER_TIMEOUT, mail=first_kind) as first,
        Instance(dsn, folder, "second", failover_timeout=FAILOVER_TIMEOUT, mail=second_kind) as second,
    ):
        yield Pair(dsn, history, first, second)


@pytest.fixture
async def dsn(postgres_dsn: str) -> str:
    """With a table for the effects of transactional handlers."""
    await rows(postgres_dsn, EFFECTS)
    return postgres_dsn


def test_the_checkpoint_of_an_instance_that_comes_back_is_refused(dsn: str, history: History) -> None:
    """It does not move, the second goes on where it was, and the first takes over when that one dies."""
    with pair(dsn, history, "slow", "slow") as both:
        both.change()
        before = look(dsn, _CHECKPOINT)
        both.come_back()
        after = look(dsn, _CHECKPOINT)
        has_been_told = both.first.has_said("has another owner") or both.first.has_said("has lost the store")
        both.change_back()
        [(_, last, epoch)] = look(dsn, _CHECKPOINT)

    assert before == after
    assert has_been_told
    assert handled(history, "second") == both.event_ids[:2]
    # Its event at hand, and what came after it was well again.
    assert handled(history, "first") == [both.event_ids[0], both.event_ids[2]]
    assert (last, epoch) == (both.event_ids[2], before[0][2] + 1)


def test_an_instance_that_comes_back_is_refused_although_it_is_further_than_the_other(
    dsn: str, history: History
) -> None:
    """The second is still at the event that the first gets through: it counts when the second is, too."""
    with pair(dsn, history, "slow", "slow") as both:
        both.first.start(*AT_WORK)
        both.second.start("standby")
        event_ids = both.first.ask("publish", count=3)
        wait_until(lambda: history.of(f"{BEGAN}-{ID}-by-first"), "the first is at an event")
        both.first.stand_still()
        wait_until(lambda: history.of(f"{BEGAN}-{ID}-by-second"), "the second is at an event")
        both.come_back()
        after = look(dsn, "SELECT last_global_sequence FROM postbus.event_bus_checkpoints")
        both.second.ask("release")
        both.second.ask("caught_up", id=ID)

    assert after == [(0,)]
    assert handled(history, "first") == event_ids[:1]
    assert handled(history, "second") == event_ids


def test_a_dead_letter_of_an_instance_that_comes_back_is_refused(dsn: str, history: History) -> None:
    """The handler of the first fails, that of the second has not: there is no dead letter."""
    with pair(dsn, history, "failing", "ok") as both:
        both.change()
        both.come_back()
        letters = look(dsn, "SELECT count(*) FROM postbus.event_bus_dlq")
        both.change_back()
        later = look(dsn, "SELECT event_id, error_message FROM postbus.event_bus_dlq")

    assert letters == [(0,)]
    assert [event_id for event_id, _ in later] == [both.event_ids[2]]
    assert "in first" in later[0][1]


def test_state_and_events_of_a_saga_that_comes_back_are_refused(dsn: str, history: History) -> None:
    """Each order counts once and is answered once."""
    with pair(dsn, history, "saga", "saga") as both:
        both.change()
        both.come_back()
        after = look(dsn, "SELECT state::text FROM postbus.postbus_states")
        both.change_back()
        state = look(dsn, "SELECT state::text FROM postbus.postbus_states")
        answers = look(
            dsn,
            "SELECT data #>> '{}' FROM postbus.events WHERE event_type = 'answer.given' "
            "ORDER BY global_sequence",
        )

    assert (after, state) == ([("1",)], [("3",)])
    assert [event_id for (event_id,) in answers] == both.event_ids


def test_effects_of_a_transaction_that_comes_back_are_refused(dsn: str, history: History) -> None:
    """They were undone when the second took over; the statements that come after them fail."""
    with pair(dsn, history, "transactional", "transactional") as both:
        both.change()
        both.come_back()
        before = look(dsn, "SELECT event_id, instance FROM effects")
        both.change_back()
        effects = look(dsn, "SELECT event_id, instance FROM effects ORDER BY event_id")

    assert before == [(both.event_ids[0], "second")]
    assert effects == list(zip(both.event_ids, ("second", "second", "first"), strict=True))


def test_a_transactional_handler_is_not_called_by_an_instance_that_comes_back(
    dsn: str, history: History
) -> None:
    """It stood still between two events: what is new is the other one's."""
    with pair(dsn, history, "transactional", "transactional") as both:
        both.first.start(*AT_WORK)
        both.second.start("standby")
        for each in (both.first, both.second):
            each.ask("release")
        both.first.stand_still()
        event_ids = both.second.ask("publish", count=10)
        wait_until_handled(history, "second", "the second has taken over")
        both.first.go_on()
        event_ids += both.second.ask("publish", count=10)
        both.first.wait_for_state("standby")
        both.second.ask("caught_up", id=ID)

    assert handled(history, "first") == []
    assert handled(history, "second") == event_ids


def test_an_instance_that_stands_still_in_a_statement_is_replaced_and_comes_back(
    dsn: str, history: History
) -> None:
    """The server counts no silence before it has heard all of a statement: the standby does, and ends it."""
    with pair(dsn, history, "ok", "ok") as both:
        both.first.start(*AT_WORK)
        both.second.start("standby")
        pid, _ = both.first.ask("session")
        both.first.stand_still_in_statement()
        event_ids = both.second.ask("publish", count=3)
        wait_until_handled(history, "second", "the second has taken over")
        told = both.second.has_said(f"its session (process {pid} of the server) is ended")
        both.first.go_on()
        both.first.wait_for_state("standby")
        both.second.ask("caught_up", id=ID)

    assert told
    assert handled(history, "first") == []
    assert handled(history, "second") == event_ids


def test_two_instances_that_stand_still_in_turn_lose_nothing(dsn: str, history: History) -> None:
    """Three times to and fro: each takes over from the other, and comes back to stand by."""
    with pair(dsn, history, "transactional", "transactional") as both:
        active, standby = both.first, both.second
        active.start(*AT_WORK)
        standby.start("standby")
        event_ids: list[str] = []
        for each in (active, standby):
            each.ask("release")
        for _ in range(3):
            event_ids += active.ask("publish", count=3)
            active.stand_still()
            standby.wait_for_state(*AT_WORK)
            event_ids += standby.ask("publish", count=3)
            active.go_on()
            active.wait_for_state("standby")
            active, standby = standby, active
        active.ask("caught_up", id=ID)
        effects = look(dsn, "SELECT event_id FROM effects ORDER BY event_id")

    assert effects == [(each,) for each in event_ids]
