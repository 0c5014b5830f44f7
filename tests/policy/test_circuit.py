"""When a subscription that mostly fails is left alone, and when it is tried again."""

import math

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from postbus.policy.circuit import CircuitBreaker, CircuitState

outcomes = st.lists(st.booleans(), max_size=12)


def make_breaker(*past_outcomes: bool, now: float = 0.0) -> CircuitBreaker:
    """A breaker that saw these outcomes, all at one moment."""
    breaker = CircuitBreaker()
    for succeeded in past_outcomes:
        breaker.record(succeeded, now)
    return breaker


def make_probing_breaker() -> CircuitBreaker:
    """A breaker that opened at 0 and let a probe in at 30."""
    breaker = make_breaker(*[False] * 4)
    assert breaker.try_enter(30.0)
    return breaker


def test_a_new_breaker_is_closed() -> None:
    """Nothing has failed yet."""
    breaker = CircuitBreaker()

    assert breaker.state is CircuitState.CLOSED
    assert breaker.try_enter(0.0)
    assert breaker.seconds_until_probe(0.0) == 0


def test_three_failures_do_not_open_it() -> None:
    """Fewer than four outcomes say too little."""
    assert make_breaker(False, False, False).state is CircuitState.CLOSED


def test_four_failures_open_it() -> None:
    """Four outcomes are enough."""
    assert make_breaker(False, False, False, False).state is CircuitState.OPEN


def test_half_of_the_outcomes_do_not_open_it() -> None:
    """It takes more than half."""
    assert make_breaker(True, True, True, False, False, False).state is CircuitState.CLOSED


def test_one_more_than_half_opens_it() -> None:
    """Four of seven are more than half."""
    assert make_breaker(True, True, True, False, False, False, False).state is CircuitState.OPEN


@given(st.floats(0, 1e9))
def test_outcomes_of_the_last_minute_count_together(start: float) -> None:
    """59 seconds apart is within 60."""
    breaker = make_breaker(False, False, False, now=start)
    breaker.record(False, start + 59)

    assert breaker.state is CircuitState.OPEN


@given(st.floats(0, 1e9))
def test_outcomes_of_more_than_a_minute_ago_are_forgotten(start: float) -> None:
    """61 seconds apart is not."""
    breaker = make_breaker(False, False, False, now=start)
    breaker.record(False, start + 61)

    assert breaker.state is CircuitState.CLOSED


def test_forgotten_failures_do_not_count_against_new_outcomes() -> None:
    """One failure of four is no reason to open, whatever was an hour ago."""
    breaker = make_breaker(False, False, False, now=0)
    for succeeded in (True, True, True, False):
        breaker.record(succeeded, 3600.0)

    assert breaker.state is CircuitState.CLOSED


def test_a_second_begins_on_its_very_moment() -> None:
    """An outcome at 1.0 belongs to that second, and is still in the window at 60.9."""
    breaker = make_breaker(True, True, True, now=0.0)
    for _ in range(3):
        breaker.record(False, 1.0)
    breaker.record(False, 60.9)

    assert breaker.state is CircuitState.OPEN


def test_it_opens_when_old_successes_leave_the_window() -> None:
    """A success of an hour ago excuses no failure of today."""
    breaker = make_breaker(*[True] * 1000, now=0)
    for second in (3600.0, 3601.0, 3602.0, 3603.0):
        breaker.record(False, second)

    assert breaker.state is CircuitState.OPEN


@given(st.floats(0, 1e6), st.floats(0, 29.9))
def test_nobody_enters_an_open_breaker_for_thirty_seconds(opened_at: float, waited: float) -> None:
    """It says how long is left, too."""
    breaker = make_breaker(*[False] * 4, now=opened_at)

    assert not breaker.try_enter(opened_at + waited)
    assert math.isclose(breaker.seconds_until_probe(opened_at + waited), 30 - waited, abs_tol=1e-6)


@given(st.floats(30, 1e6), st.lists(st.floats(0, 1e6), max_size=5))
def test_exactly_one_probe_enters_when_the_time_is_over(waited: float, later: list[float]) -> None:
    """However long its outcome takes, no second one follows."""
    breaker = make_breaker(*[False] * 4)

    assert breaker.seconds_until_probe(waited) == 0
    assert breaker.try_enter(waited)
    assert breaker.state is CircuitState.HALF_OPEN
    assert not any(breaker.try_enter(waited + more) for more in later)


def test_a_probe_under_way_leaves_no_time_to_tell() -> None:
    """Whoever waits is woken by the probe's outcome, not by a clock."""
    assert make_probing_breaker().seconds_until_probe(99.0) == math.inf


def test_a_probe_that_succeeds_closes_it() -> None:
    """The failures that opened it are forgotten: it takes four new outcomes to open it again."""
    breaker = make_probing_breaker()
    breaker.record(True, 31.0)

    assert breaker.state is CircuitState.CLOSED
    assert breaker.try_enter(31.0)

    for _ in range(3):
        breaker.record(False, 31.0)

    assert breaker.state is CircuitState.CLOSED


def test_a_probe_that_fails_opens_it_for_another_thirty_seconds() -> None:
    """Counted from the probe's end."""
    breaker = make_probing_breaker()
    breaker.record(False, 35.0)

    assert breaker.state is CircuitState.OPEN
    assert breaker.seconds_until_probe(35.0) == 30
    assert not breaker.try_enter(64.9)
    assert breaker.try_enter(65.0)


@given(outcomes, st.floats(0, 100))
def test_late_outcomes_neither_shorten_nor_extend_the_wait(late: list[bool], now: float) -> None:
    """They belong to attempts that began before it opened."""
    breaker = make_breaker(*[False] * 4)
    for succeeded in late:
        breaker.record(succeeded, now)

    assert breaker.state is CircuitState.OPEN
    assert breaker.seconds_until_probe(10.0) == 20


def test_an_abandoned_probe_makes_way_for_another() -> None:
    """A probe that is cancelled must not keep the breaker half-open for ever."""
    breaker = make_probing_breaker()
    breaker.abandon_probe()

    assert breaker.state is CircuitState.OPEN
    assert breaker.seconds_until_probe(30.0) == 0
    assert breaker.try_enter(30.0)
    assert not breaker.try_enter(30.0)


def test_abandoning_without_a_probe_changes_nothing() -> None:
    """Whoever cleans up need not know whether the attempt was a probe."""
    closed, opened = CircuitBreaker(), make_breaker(*[False] * 4)
    closed.abandon_probe()
    opened.abandon_probe()

    assert closed.state is CircuitState.CLOSED
    assert not opened.try_enter(29.0)


def test_memory_stays_bounded_however_many_outcomes_there_are() -> None:
    """A day of outcomes keeps no more than a minute of counters."""
    breaker = CircuitBreaker()
    for tenth in range(200_000):
        breaker.record(True, tenth / 10)

    assert len(breaker._buckets) == 60


class BreakerAgainstModel(RuleBasedStateMachine):
    """Any order of calls gives what a plain list of outcomes and the rule itself give."""

    @initialize(start=st.floats(0, 1e5) | st.integers(0, 1000))
    def begin(self, start: float) -> None:
        self.breaker = CircuitBreaker()
        self.now = start
        self.state = "closed"
        self.due_at = 0.0
        self.outcomes: list[tuple[int, bool]] = []

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 14.0, 29.5, 30.0, 59.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(results=st.lists(st.sampled_from([True, False, False]), min_size=1, max_size=4))
    def record(self, results: list[bool]) -> None:
        for succeeded in results:
            self.breaker.record(succeeded, self.now)
            self.record_in_model(succeeded)

    def record_in_model(self, succeeded: bool) -> None:
        if self.state == "half_open":
            self.state, self.outcomes = ("closed", []) if succeeded else ("open", self.outcomes)
            self.due_at = self.now + 30
        elif self.state == "closed":
            self.outcomes.append((math.floor(self.now), succeeded))
            recent = [result for second, result in self.outcomes if second > math.floor(self.now) - 60]
            if len(recent) >= 4 and recent.count(False) > len(recent) / 2:
                self.state, self.due_at = "open", self.now + 30

    @rule()
    def try_enter(self) -> None:
        expected = self.state == "closed" or (self.state == "open" and self.now >= self.due_at)
        if expected and self.state == "open":
            self.state = "half_open"

        assert self.breaker.try_enter(self.now) is expected

    @rule()
    def abandon(self) -> None:
        self.breaker.abandon_probe()
        if self.state == "half_open":
            self.state = "open"

    @invariant()
    def it_agrees_with_the_model(self) -> None:
        waits = {"closed": 0.0, "half_open": math.inf, "open": max(0.0, self.due_at - self.now)}

        assert str(self.breaker.state) == self.state
        assert self.breaker.seconds_until_probe(self.now) == waits[self.state]


TestBreakerAgainstModel = BreakerAgainstModel.TestCase
