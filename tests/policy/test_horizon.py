"""Up to which number nothing can appear any more: the rule, all that can happen to it, and worse rules."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import UnsoundLogError
from postbus.events import WriterSample
from postbus.policy.horizon import WriterHorizon
from tests.policy.horizon_model import (
    OPEN,
    PREPARED,
    Model,
    Step,
    World,
    Writer,
    fetch,
    give_up,
    in_one,
    judge_by_horizon,
    name_of,
    name_with_pid,
    name_without_backend,
    see_high,
    see_holders,
    up_to,
)
from tests.policy.log_simulation import SimulatedDatabase, number_of


def observe(horizon: WriterHorizon, high: int, *holders: str, server: str = "a") -> int:
    """What is settled after one more sample."""
    return horizon.observe(WriterSample(server, high, holders))


class TestSamples:
    def test_with_no_writer_everything_visible_is_settled(self) -> None:
        """Numbers that nobody can use any more are passed at the first look."""
        assert observe(WriterHorizon(), 7) == 7

    def test_a_writer_of_the_first_sample_may_own_any_number(self) -> None:
        """Nobody knows when it began."""
        horizon = WriterHorizon()

        assert observe(horizon, 7, "3/41") == 0
        assert observe(horizon, 9, "3/41") == 0
        assert observe(horizon, 9) == 9

    def test_a_writer_that_appears_later_holds_up_only_what_was_not_visible_before(self) -> None:
        """It drew its first number after the last sample."""
        horizon = WriterHorizon()
        observe(horizon, 7)

        assert observe(horizon, 20, "3/41") == 7

    def test_a_writer_keeps_its_place_as_long_as_it_is_listed(self) -> None:
        """However much is published meanwhile."""
        horizon = WriterHorizon()
        observe(horizon, 7)
        observe(horizon, 20, "3/41")

        assert [observe(horizon, high, "3/41", f"4/{high}") for high in (30, 40, 50)] == [7, 7, 7]
        assert observe(horizon, 50, "4/50") == 40

    def test_the_one_that_began_first_holds_up_the_others(self) -> None:
        """The lowest number that somebody may own counts."""
        horizon = WriterHorizon()
        observe(horizon, 5)
        observe(horizon, 8, "1/1")

        assert observe(horizon, 9, "2/1", "1/1") == 5
        assert observe(horizon, 10, "2/1") == 8

    def test_writers_that_come_and_go_between_samples_hold_up_nothing_for_long(self) -> None:
        """There is always somebody at work, and the horizon moves on all the same."""
        horizon = WriterHorizon()

        assert [observe(horizon, 10 * n, f"1/{n}", f"2/{n}") for n in range(5)] == [0, 0, 10, 20, 30]

    def test_a_transaction_that_has_ended_is_no_writer(self) -> None:
        """Its lock is listed a moment longer; what it published is visible."""
        assert observe(WriterHorizon(), 7, "3/0") == 7
        assert observe(WriterHorizon(), 7, "3/10") == 0

    def test_a_prepared_transaction_that_keeps_its_name_keeps_its_place(self) -> None:
        """PREPARE TRANSACTION changes nothing that a sample shows."""
        horizon = WriterHorizon()
        observe(horizon, 7)
        observe(horizon, 9, "3/41")

        assert observe(horizon, 12, "3/41") == 7

    def test_a_prepared_transaction_without_a_backend_may_own_whatever_is_not_settled(self) -> None:
        """It may have been known by another name until now."""
        horizon = WriterHorizon()
        observe(horizon, 7)
        observe(horizon, 9, "3/41")
        observe(horizon, 12, "3/41")

        assert observe(horizon, 15, "-1/731") == 7
        assert observe(horizon, 20, "-1/731") == 7
        assert observe(horizon, 20) == 20

    def test_a_log_without_events_settles_nothing(self) -> None:
        """Its first numbers may be on their way."""
        assert observe(WriterHorizon(), 0) == 0


class TestServers:
    def test_before_the_first_sample_nothing_is_known(self) -> None:
        """Of no server."""
        horizon = WriterHorizon()

        assert (horizon.settled, horizon.server) == (0, None)
        assert horizon.settled_on(None) == horizon.settled_on("a") == 0

    def test_what_is_settled_on_one_server_is_not_on_another(self) -> None:
        """A page that another server answered says nothing about these numbers."""
        horizon = WriterHorizon()
        observe(horizon, 7, server="a")

        assert (horizon.settled_on("a"), horizon.settled_on("b"), horizon.settled_on(None)) == (7, 0, 0)

    def test_a_sample_of_another_server_starts_from_nothing(self) -> None:
        """Its numbers may be lower, and its writers may have begun at any time."""
        horizon = WriterHorizon()
        observe(horizon, 50, "3/41", server="a")
        observe(horizon, 60, server="a")

        assert observe(horizon, 40, "3/41", server="b") == 0
        assert horizon.server == "b"
        assert observe(horizon, 41, server="b") == 41

    def test_after_a_reconnection_nothing_is_known(self) -> None:
        """Even if the server has the same name: it may hand out numbers again."""
        horizon = WriterHorizon()
        observe(horizon, 50)
        horizon.forget()

        assert (horizon.settled, horizon.server, horizon.settled_on("a")) == (0, None, 0)
        assert observe(horizon, 30, "3/41") == 0


class TestALogThatWentBack:
    def test_it_is_refused_with_the_cause_and_the_cure(self) -> None:
        """Numbers that were passed may be used again: going on would lose events without a word."""
        horizon = WriterHorizon()
        observe(horizon, 1000)

        with pytest.raises(
            UnsoundLogError, match=r"is 3 and was 1000.*RESTART IDENTITY.*event_bus_checkpoints"
        ):
            observe(horizon, 3)

    def test_it_is_refused_again_and_again(self) -> None:
        """Nobody gets by with trying twice."""
        horizon = WriterHorizon()
        observe(horizon, 10)
        observe(horizon, 12, "3/41")
        for _ in range(2):
            with pytest.raises(UnsoundLogError):
                observe(horizon, 11)

        assert (horizon.settled, horizon.server) == (10, "a")
        assert observe(horizon, 12, "3/41") == 10


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "draw", "prepare", "end", "sample"]), st.integers(0, 9))),
    st.booleans(),
)
def test_nobody_can_use_a_number_that_is_settled(actions: list[tuple[str, int]], is_renaming: bool) -> None:
    """Any writers, and samples at any time; and with nobody at work all that is visible is settled."""
    database, horizon = SimulatedDatabase(is_renaming=is_renaming), WriterHorizon()
    for action, die in [*actions, ("sample", 0)]:
        settled, writers = horizon.settled, database.writers
        if action == "sample":
            holders = tuple(writer.name for writer in writers)
            assert observe(horizon, max(database.events, default=0), *holders) >= settled
            if not writers:
                assert horizon.settled == max(database.events, default=0)
        elif action == "begin":
            database.begin(None)
        elif writers and action == "draw":
            database.draw(writers[die % len(writers)])
        elif writers and action == "prepare":
            database.prepare(writers[die % len(writers)])
        elif writers:
            database.end(writers[die % len(writers)], is_commit=die % 2 == 0)

        unseen = [number_of(event) for writer in database.writers for event in writer.events]
        assert horizon.settled < min([*unseen, database.last_drawn + 1])


class TestAllThatCanHappen:
    """A model small enough to go through every order of the steps of its writers and its reader."""

    @pytest.mark.parametrize(
        ("name", "writer_count", "number_count", "poll_count", "has_stragglers"),
        [
            (name_of, 3, 1, 3, False),
            (name_of, 2, 1, 4, True),
            (name_without_backend, 2, 2, 3, False),
        ],
        ids=["three writers", "ended and still listed", "two numbers each, and a name that changes"],
    )
    def test_no_number_is_given_up_that_appears_later_and_none_is_waited_for_in_vain(
        self,
        name: Callable[[int, Writer], str],
        writer_count: int,
        number_count: int,
        poll_count: int,
        has_stragglers: bool,
    ) -> None:
        """First the sample, then the fetch; once nobody is at work, one more of both closes every gap."""
        steps = (see_high, see_holders(name), in_one(fetch, judge_by_horizon()))
        model = Model(steps, writer_count, number_count, poll_count, has_stragglers)
        search = model.search()

        assert search.loss is None, search.story
        at_rest = [w for w in search.came_from if w.is_quiet and w.reader.step % len(steps) == 0]
        assert any(world.reader.open for world in at_rest)
        assert not any(model.poll(world).reader.open for world in at_rest)


class TestWorseRules:
    """What looks as good loses events in the same model: so the model would show it if ours did."""

    def loses(self, *steps: Step) -> bool:
        return Model(steps, writer_count=2, number_count=2, poll_count=3).search().loss is not None

    def test_the_rule_itself_loses_nothing_here(self) -> None:
        """The very steps of which the next ones are variants."""
        assert not self.loses(see_high, see_holders(name_of), in_one(fetch, judge_by_horizon()))

    def test_to_see_the_highest_number_after_the_holders(self) -> None:
        """Somebody may draw a number in between, and a higher one become visible."""
        assert self.loses(see_holders(name_of), see_high, in_one(fetch, judge_by_horizon()))

    def test_to_judge_by_what_was_fetched_before_the_sample(self) -> None:
        """The number may have become visible in between."""
        assert self.loses(fetch, see_high, in_one(see_holders(name_of), judge_by_horizon()))

    def test_to_know_a_holder_by_its_process(self) -> None:
        """A prepared transaction has none any more: it looks like one that has just begun."""
        assert self.loses(see_high, see_holders(name_with_pid), in_one(fetch, judge_by_horizon()))

    def test_to_wait_for_those_who_were_at_work_before_the_gap_was_seen(self) -> None:
        """Its owner may have begun after they were listed, and before the fetch."""
        see = see_holders(name_of)

        assert self.loses(see, in_one(fetch, capture_holders, give_up_where_the_captured_are_gone))
        # Whoever holds the lock after the fetch is waited for: this rule is sound, and slower than ours.
        assert not self.loses(
            see, in_one(fetch, give_up_where_the_captured_are_gone), in_one(see, capture_holders)
        )

    def test_to_wait_for_all_that_have_a_transaction_id(self) -> None:
        """nextval() gives none: who has drawn a number and not written yet is overlooked.

        This waits for more than the fence of pg_snapshot_xmin does, and loses all the same.
        """
        assert self.loses(in_one(fetch, give_up_behind_the_fence))


def capture_holders(world: World) -> World:
    """Each new gap gets those who hold the lock now."""
    reader = world.reader
    captured = dict(reader.memory or ())
    holders = frozenset(reader.holders)
    gaps = [1 << number for number in range(1, reader.head + 1) if reader.open & 1 << number]
    memory = tuple((gap, captured.get(gap, holders)) for gap in gaps)
    return world._replace(reader=reader._replace(memory=memory))


def give_up_where_the_captured_are_gone(world: World) -> World:
    """A gap is dead when none of those that were captured for it is listed any more."""
    reader = world.reader
    dead = sum(gap for gap, captured in reader.memory or () if captured.isdisjoint(reader.holders))
    return give_up(world, dead, reader.memory)


def give_up_behind_the_fence(world: World) -> World:
    """Every gap is dead when no transaction with an id is running."""
    is_running = any(writer.written and writer.phase in (OPEN, PREPARED) for writer in world.writers)
    return world if is_running else give_up(world, up_to(world.reader.head), None)
