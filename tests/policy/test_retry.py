"""How long to wait after the n-th failure, and when to give up."""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postbus.config import RetryPolicy
from postbus.errors import InvalidConfigError
from postbus.policy.retry import is_exhausted, most_permissive, override_policy, retry_delay

delays = st.floats(min_value=0, max_value=1e6)
policies = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, 50),
    base_delay=delays,
    max_delay=delays,
    backoff_multiplier=st.floats(1, 1e6) | st.integers(1, 10),
    jitter=st.floats(0, 1),
)
failure_counts = st.integers(1, 60)
noises = st.floats(-1, 1)
EXACT = RetryPolicy(jitter=0)


@pytest.mark.parametrize(
    ("failure_count", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0), (6, 30.0), (7, 30.0)]
)
def test_the_defaults_wait_as_specified(failure_count: int, seconds: float) -> None:
    """Attempt 2 waits the base delay, each later one twice as long, none more than the largest."""
    assert retry_delay(RetryPolicy(), failure_count, noise=0) == seconds


def test_the_first_attempt_does_not_wait() -> None:
    """Without a failure there is nothing to wait for."""
    assert retry_delay(RetryPolicy(), 0, noise=1) == 0


@given(policies, failure_counts)
@example(RetryPolicy(base_delay=5e-324, max_delay=1.0, backoff_multiplier=167748.0, jitter=0), 60)
def test_a_delay_is_the_formula_of_the_design(policy: RetryPolicy, failure_count: int) -> None:
    """Before attempt n: min(base * multiplier ** (n - 2), max)."""
    attempt = failure_count + 1
    # Fractions are exact and have no largest number.
    growth = Fraction(policy.backoff_multiplier) ** (attempt - 2)
    expected = min(Fraction(policy.base_delay) * growth, Fraction(policy.max_delay))

    assert retry_delay(policy, failure_count, noise=0) == pytest.approx(float(expected))


@given(policies, failure_counts, noises)
def test_jitter_moves_a_delay_by_its_fraction_at_most(
    policy: RetryPolicy, failure_count: int, noise: float
) -> None:
    """Noise of ±1 moves it by exactly the fraction, noise of 0 not at all."""
    exact = retry_delay(policy, failure_count, noise=0)

    assert retry_delay(policy, failure_count, noise) == pytest.approx(exact + exact * policy.jitter * noise)
    assert retry_delay(policy, failure_count, noise) >= 0


@given(policies, failure_counts)
def test_a_later_failure_never_waits_less(policy: RetryPolicy, failure_count: int) -> None:
    """Back-off only grows."""
    assert retry_delay(policy, failure_count, 0) <= retry_delay(policy, failure_count + 1, 0) * (1 + 1e-12)


@given(policies, st.integers(1, 10**400), noises)
@example(RetryPolicy(backoff_multiplier=1e308), 3, 1.0)
@example(RetryPolicy(backoff_multiplier=2), 10**400, 0.0)
@example(RetryPolicy(backoff_multiplier=1), 10**400, 0.0)
@example(RetryPolicy(base_delay=0, backoff_multiplier=1e308), 3, 0.0)
def test_no_number_of_failures_is_too_large(policy: RetryPolicy, failure_count: int, noise: float) -> None:
    """The delay stays a finite number within the limit, and comes back at once."""
    delay = retry_delay(policy, failure_count, noise)

    assert math.isfinite(delay)
    assert 0 <= delay <= policy.max_delay * (1 + policy.jitter)


@pytest.mark.parametrize("failure_count", [1, 2, 1000, 10**400])
def test_a_multiplier_of_one_always_waits_the_base_delay(failure_count: int) -> None:
    """A constant delay stays constant."""
    assert retry_delay(RetryPolicy(base_delay=2, backoff_multiplier=1), failure_count, noise=0) == 2


def test_slow_growth_reaches_the_largest_delay_in_the_end() -> None:
    """A multiplier close to 1 is not cut off half way."""
    policy = RetryPolicy(base_delay=1, max_delay=30, backoff_multiplier=1.0001, jitter=0)

    assert retry_delay(policy, 100_000, noise=0) == 30


@given(st.integers(0, 1000))
def test_attempts_are_used_up_after_one_more_than_the_retries(max_retries: int) -> None:
    """max_retries + 1 attempts run, no fewer and no more."""
    policy = RetryPolicy(max_retries=max_retries)

    assert [is_exhausted(policy, count) for count in (max_retries, max_retries + 1)] == [False, True]


@given(
    policies, policies, st.sets(st.sampled_from([field.name for field in dataclasses.fields(RetryPolicy)]))
)
def test_a_mapping_overrides_only_its_fields(base: RetryPolicy, other: RetryPolicy, names: set[str]) -> None:
    """Fields that it doesn't name keep the bus's values."""
    merged = override_policy(base, {name: getattr(other, name) for name in names})

    for field in dataclasses.fields(RetryPolicy):
        source = other if field.name in names else base
        assert getattr(merged, field.name) == getattr(source, field.name)


def test_a_whole_policy_replaces_the_default() -> None:
    """Its own defaults count then, not the bus's."""
    assert override_policy(RetryPolicy(max_delay=5), RetryPolicy(max_retries=9)) == RetryPolicy(max_retries=9)


def test_no_override_leaves_the_default() -> None:
    """The very same policy comes back."""
    base = RetryPolicy(max_delay=5)

    assert override_policy(base, None) is base


def test_an_unknown_field_is_refused_and_the_known_ones_named() -> None:
    """A slip of the pen doesn't silently leave the default in force."""
    with pytest.raises(InvalidConfigError, match=r"'maxRetries'.*max_retries, base_delay, max_delay"):
        override_policy(RetryPolicy(), {"maxRetries": 5})


@pytest.mark.parametrize(
    "override", [{"max_retries": -1}, {"max_retries": 2.5}, {"base_delay": math.nan}, {"jitter": 2}]
)
def test_a_field_out_of_range_is_refused(override: Mapping[str, float]) -> None:
    """The result is checked like any policy."""
    with pytest.raises(InvalidConfigError):
        override_policy(RetryPolicy(), override)


@pytest.mark.parametrize("override", [5, "max_retries", [("max_retries", 5)]])
def test_what_is_neither_policy_nor_mapping_is_refused(override: object) -> None:
    """The message says what retry may be."""
    with pytest.raises(InvalidConfigError, match="a RetryPolicy or a dict of its fields"):
        override_policy(RetryPolicy(), override)  # type: ignore[arg-type]


@given(st.lists(policies, min_size=1, max_size=5))
def test_the_most_permissive_policy_takes_the_best_of_each(several: list[RetryPolicy]) -> None:
    """Largest retries, smallest base, largest max, largest multiplier, largest jitter."""
    chosen = most_permissive(several)

    assert chosen.max_retries == sorted(policy.max_retries for policy in several)[-1]
    assert chosen.base_delay == sorted(policy.base_delay for policy in several)[0]
    assert chosen.max_delay == sorted(policy.max_delay for policy in several)[-1]
    assert chosen.backoff_multiplier == sorted(policy.backoff_multiplier for policy in several)[-1]
    assert chosen.jitter == sorted(policy.jitter for policy in several)[-1]


@given(
    st.permutations([EXACT, RetryPolicy(max_retries=9, base_delay=0.5), RetryPolicy(max_delay=90, jitter=1)])
)
def test_the_order_of_handlers_does_not_matter(several: list[RetryPolicy]) -> None:
    """Several handlers on one event give the same policy however they were registered."""
    assert most_permissive(several) == RetryPolicy(max_retries=9, base_delay=0.5, max_delay=90, jitter=1)
