"""A goal is reached, missed or not measured, and the exit code says what was asked for."""

import pytest

from bench.__main__ import exit_code
from bench.goals import GOALS
from bench.judging import Goal, Judgement, Verdict, judge
from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import Failed, NotInstalled
from tests.bench.steps import goal, results_of, sample


@pytest.mark.parametrize(
    ("wanted", "verdict"),
    [
        (goal(against="raw", at_least=0.5), Verdict.REACHED),
        (goal(against="raw", at_least=0.51), Verdict.MISSED),
        (goal(against="raw", at_most=0.5), Verdict.REACHED),
        (goal(against="raw", at_most=0.49), Verdict.MISSED),
        (goal(at_least=50), Verdict.REACHED),
        (goal(at_most=49), Verdict.MISSED),
    ],
)
def test_the_median_decides_about_a_goal(wanted: Goal, verdict: Verdict) -> None:
    """A figure on the bar reaches it."""
    results = results_of(
        ours=[sample(50.0), sample(10.0), sample(90.0)], raw=[sample(100.0), sample(20.0), sample(180.0)]
    )

    assert judge(wanted, results).verdict is verdict


@pytest.mark.parametrize("problem", [NotInstalled("no peer"), Failed("took longer than 60 s")])
def test_a_goal_against_a_row_without_figures_is_not_measured(problem: NotInstalled | Failed) -> None:
    """The judgement says why."""
    results = results_of(ours=[sample(50.0)], peer=[problem])

    assert judge(goal(against="peer", at_least=1), results) == Judgement(
        goal(against="peer", at_least=1), Verdict.NOT_MEASURED, None, problem.reason
    )


def test_a_goal_whose_row_is_not_part_of_the_run_is_not_measured() -> None:
    """A quick run says nothing about large files."""
    judgement = judge(goal(against="raw", at_least=1), results_of(ours=[sample(50.0)]))

    assert (judgement.verdict, judgement.reason) == (Verdict.NOT_MEASURED, "not part of this run")


@pytest.mark.parametrize("wanted", GOALS, ids=lambda wanted: wanted.name)
def test_every_goal_is_about_figures_that_exist(wanted: Goal) -> None:
    """A renamed row takes its goals along; a goal has exactly one bar."""
    workload = WORKLOADS[wanted.workload]

    assert {wanted.candidate, wanted.against} - {None} <= {
        candidate.name for candidate in workload.candidates
    }
    assert wanted.key in {column.key for column in workload.columns}
    assert (wanted.at_least is None) != (wanted.at_most is None)


def test_a_missing_peer_or_a_missed_goal_is_an_error_only_if_asked_for() -> None:
    """Without the peers, and on a slow machine, the run still succeeds."""
    results = results_of(ours=[sample(50.0)], peer=[NotInstalled("no peer")])
    judgements = [judge(goal(against="peer", at_least=1), results), judge(goal(at_least=99), results)]

    assert exit_code(results, judgements, is_strict=False) == 0
    assert exit_code(results, judgements, is_strict=True) == 1


def test_a_candidate_that_fails_is_an_error() -> None:
    """A broken benchmark is not taken for a slow one."""
    results = results_of(ours=[Failed("exit code 1")])

    assert exit_code(results, [], is_strict=False) == 1
