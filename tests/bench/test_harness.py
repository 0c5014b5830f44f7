"""Rounds alternate between the candidates, and the median over them counts."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from postbus.ops.bench.harness import (
    Failed,
    NotInstalled,
    Outcome,
    Row,
    Summary,
    order_of_round,
    run_rounds,
    summarize,
)
from postbus.ops.bench.model import Candidate, Workload
from tests.bench.steps import WORKLOAD, candidate_named, results_of, sample


@given(st.lists(st.integers(), unique=True), st.integers(min_value=0, max_value=100))
def test_a_round_runs_every_candidate_once(items: list[int], round_number: int) -> None:
    """Whatever the round, nobody is left out or measured twice."""
    assert sorted(order_of_round(items, round_number)) == sorted(items)


def test_each_round_begins_with_another_candidate() -> None:
    """The place after a disturbing neighbour is not always the same one's."""
    assert [order_of_round("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]


def test_candidates_alternate_and_rounds_go_through_all_workloads() -> None:
    """Candidates of one workload run right after each other, their rounds are far apart."""
    other = replace(WORKLOAD, name="other", candidates=(candidate_named("x"),))
    selection = {w.name: (w, w.candidates) for w in (WORKLOAD, other)}
    order: list[str] = []

    def run(_: Workload, candidate: Candidate) -> Outcome:
        order.append(candidate.name)
        return sample(1.0)

    run_rounds(selection, 2, run, lambda row, round_number: None)

    assert order == ["ours", "raw", "peer", "x", "raw", "peer", "ours", "x"]


def test_a_candidate_that_failed_sits_out_the_later_rounds() -> None:
    """A candidate that takes too long does so once."""
    order: list[str] = []

    def run(_: Workload, candidate: Candidate) -> Outcome:
        order.append(candidate.name)
        return Failed("took longer than 60 s") if candidate.name == "raw" else sample(1.0)

    results = run_rounds({"work": (WORKLOAD, WORKLOAD.candidates)}, 3, run, lambda row, round_number: None)

    assert order.count("raw") == 1
    assert order.count("ours") == 3
    assert [isinstance(row.problem, Failed) for row in results.rows] == [False, True, False]


def test_no_round_begins_for_which_there_is_no_time() -> None:
    """The first round is measured in any case."""
    results = run_rounds(
        {"work": (WORKLOAD, WORKLOAD.candidates)},
        5,
        lambda workload, candidate: sample(1.0),
        lambda row, round_number: None,
        may_begin=lambda round_number: round_number < 2,
    )

    assert [len(row.outcomes) for row in results.rows] == [2, 2, 2]


def test_the_median_is_not_moved_by_one_noisy_round() -> None:
    """The spread shows it instead."""
    row = Row(WORKLOAD, WORKLOAD.candidate("ours"), [sample(100.0), sample(3.0), sample(102.0)])

    assert row.summary("rate") == Summary(median=100.0, low=3.0, high=102.0, count=3)


def test_a_figure_that_no_round_has_is_no_summary() -> None:
    """Nothing is made up."""
    row = Row(WORKLOAD, WORKLOAD.candidate("ours"), [sample(100.0)])

    assert row.summary("p99") is None
    assert summarize(iter(())) is None


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that is slow for one round is slow for both sides of the ratio."""
    results = results_of(
        ours=[sample(50.0), sample(5.0), sample(40.0)], raw=[sample(100.0), sample(10.0), sample(100.0)]
    )

    assert results.ratio("work", "rate", "ours", "raw") == Summary(median=0.5, low=0.4, high=0.5, count=3)


def test_a_ratio_needs_both_sides() -> None:
    """Rounds in which one of them was not measured do not count."""
    results = results_of(
        ours=[sample(50.0), sample(60.0)], raw=[sample(100.0)], peer=[NotInstalled("no peer")]
    )

    ratio = results.ratio("work", "rate", "ours", "raw")

    assert ratio is not None
    assert ratio.count == 1
    assert results.ratio("work", "rate", "ours", "peer") is None
    assert results.ratio("work", "rate", "ours", "nobody") is None
