"""A goal, and whether a run reached it."""

import enum
from dataclasses import dataclass

from postbus.ops.bench.harness import Results, Row, Summary


class Verdict(enum.StrEnum):
    """What a run says about a goal."""

    REACHED = "reached"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure of a candidate, divided by *against*'s where there is one, and the bar for it.

    The median over the rounds counts; a ratio is taken round by round first.
    """

    name: str
    workload: str
    key: str
    candidate: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bar(self) -> str:
        """The bar, as text."""
        return f"≥ {self.at_least:,g}" if self.at_least is not None else f"≤ {self.at_most:,g}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A goal, what was found, and why nothing was if so."""

    goal: Goal
    verdict: Verdict
    found: Summary | None
    reason: str = ""


def judge(goal: Goal, results: Results) -> Judgement:
    """Compare the median with the bar."""
    rows = [results.row(goal.workload, name) for name in (goal.candidate, goal.against) if name is not None]
    reason = next((text for row in rows if (text := _why_not(row))), "")
    if not reason:
        found = _find(goal, results)
        if found is not None:
            return Judgement(goal, _compare(goal, found.median), found)
        reason = "no such figure"
    return Judgement(goal, Verdict.NOT_MEASURED, None, reason)


def _find(goal: Goal, results: Results) -> Summary | None:
    if goal.against is not None:
        return results.ratio(goal.workload, goal.key, goal.candidate, goal.against)
    row = results.row(goal.workload, goal.candidate)
    return None if row is None else row.summary(goal.key)


def _compare(goal: Goal, value: float) -> Verdict:
    is_high_enough = goal.at_least is None or value >= goal.at_least
    is_low_enough = goal.at_most is None or value <= goal.at_most
    return Verdict.REACHED if is_high_enough and is_low_enough else Verdict.MISSED


def _why_not(row: Row | None) -> str:
    if row is None:
        return "not part of this run"
    return "" if row.problem is None else row.problem.reason
