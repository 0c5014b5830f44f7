"""The page of results in the documentation, with its charts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.charted import charts_of
from bench.goals import GOALS
from bench.judging import Goal, Judgement, Verdict, judge
from bench.limits import LIMITS, Limit
from bench.report import markdown_table, workload_table
from bench.saved import Catalogue, Run, machines_of, together
from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import Results, Summary
from postbus.ops.bench.report import number

PAGE = "benchmarks.md"
CHARTS = "benchmarks"

_INTRODUCTION = """\
# Benchmarks

postbus, the raw driver doing the least that the job needs, and other libraries in their fastest documented
configuration, measured side by side on one machine: a round runs each row once, in a fresh process, and every
round another row goes first. Figures are medians over the rounds, with the lowest and the highest. Ratios (÷)
are taken round by round, because absolute figures move with the machine, and ratios much less. The durability
beside a row is what the database reported, and holds for events. What only means redelivery if the power
fails is written without waiting for the disk: batched checkpoints, of raw rows too, and in SQLite the mark
that an event is done, which the next event takes there. [How it is measured](../bench/README.md).

This page is made by `python -m bench --docs docs`; changes by hand are lost."""
_ELSEWHERE = """\
What a commit takes is in part the disk, for everybody, and in part what a library does. So goals about
commits depend on the disk; they were set where an fdatasync takes about 0.2 ms and raw SQLite makes 3,400
commits a second. The same rows with their files elsewhere, judged by themselves:"""
_MARKS = {Verdict.REACHED: "✓ reached", Verdict.MISSED: "✗ **missed**", Verdict.NOT_MEASURED: "not measured"}


def write_page(
    folder: Path,
    runs: Sequence[Run],
    elsewhere: Sequence[Run] = (),
    goals: Sequence[Goal] = GOALS,
    limits: Mapping[str, Limit] = LIMITS,
    catalogue: Catalogue = WORKLOADS,
) -> None:
    """Write the page and its charts into a folder; charts of an earlier page are removed.

    *elsewhere*: runs on another disk, of which only the goals are shown.
    """
    results = together(runs, catalogue)
    charts = folder / CHARTS
    charts.mkdir(parents=True, exist_ok=True)
    for old in charts.glob("*.svg"):
        old.unlink()
    for workload, rows in results.by_workload():
        for chart in charts_of(workload, rows):
            (charts / chart.file_name).write_text(chart.svg, "utf-8")
    lines = [
        *_head(runs, results, goals, limits),
        *_elsewhere(runs, results, elsewhere, together(elsewhere, catalogue), goals),
        *_workloads(results),
    ]
    (folder / PAGE).write_text("\n".join(lines) + "\n", "utf-8")


def _head(
    runs: Sequence[Run], results: Results, goals: Sequence[Goal], limits: Mapping[str, Limit]
) -> Iterator[str]:
    judgements = [judge(goal, results) for goal in goals]
    yield from (_INTRODUCTION, "", "## Machine", "")
    machine = {"runs": str(len(runs)), **machines_of(runs)}
    yield from markdown_table([["", ""], *([name, value] for name, value in machine.items())])
    counts = [f"{sum(j.verdict is verdict for j in judgements)} {verdict.value}" for verdict in Verdict]
    yield from ("", "## Goals", "", f"{', '.join(counts)}.", "")
    yield from markdown_table(goal_rows(judgements, runs, results))
    yield from _limits(judgements, limits, results)


def _elsewhere(
    runs: Sequence[Run], here: Results, others: Sequence[Run], there: Results, goals: Sequence[Goal]
) -> Iterator[str]:
    judged = [(judge(goal, here), judge(goal, there)) for goal in goals]
    shown = [pair for pair in judged if pair[1].found is not None]
    if not shown:
        return
    yield from ("", "### On another disk", "", _ELSEWHERE, "")
    # Whatever is not the same as above may be why the figures differ.
    same, other = machines_of(runs), {"runs": str(len(others)), **machines_of(others)}
    yield from markdown_table(
        [["", ""], *([name, value] for name, value in other.items() if same.get(name) != value)]
    )
    yield ""
    heads = ["goal", "bar", _files_in(runs), _files_in(others), "lowest … highest", "verdict there"]
    rows = [
        [one.goal.name, one.goal.bar, _median(one.found), _median(two.found), _spread(two.found),
         _MARKS[two.verdict]]
        for one, two in shown
    ]  # fmt: skip
    yield from markdown_table([heads, *rows])


def _files_in(runs: Sequence[Run]) -> str:
    return f"files in {machines_of(runs).get('files in', 'a folder')}"


def _workloads(results: Results) -> Iterator[str]:
    for workload, rows in results.by_workload():
        yield from ("", f"## {workload.name}", "", f"{_sentence(workload.title)}.", "")
        for chart in charts_of(workload, rows):
            yield from (f"![{chart.title}]({CHARTS}/{chart.file_name})", "")
        yield from markdown_table(workload_table(workload, rows, results))
        if workload.note:
            yield from ("", workload.note)


def goal_rows(judgements: Sequence[Judgement], runs: Sequence[Run], results: Results) -> list[list[str]]:
    """A row for each goal; with several runs also what each of them found."""
    measured = {workload.name for workload, _ in results.by_workload()}
    heads = ["goal", "bar", "found", "lowest … highest", "run by run", "verdict"]
    table = [heads if len(runs) > 1 else [head for head in heads if head != "run by run"]]
    for judgement in judgements:
        goal = judgement.goal
        name = f"[{goal.name}](#{goal.workload})" if goal.workload in measured else goal.name
        by_run = [judge(goal, run.results) for run in runs]
        cells = [name, goal.bar, _median(judgement.found), _spread(judgement.found)]
        if len(runs) > 1:
            cells.append(_by_run(by_run))
        table.append([*cells, _verdict(judgement, by_run)])
    return table


def _by_run(judgements: Sequence[Judgement]) -> str:
    if all(judgement.found is None for judgement in judgements):
        return ""
    return ", ".join(_median(judgement.found) or "none" for judgement in judgements)


def _verdict(judgement: Judgement, by_run: Sequence[Judgement]) -> str:
    mark = _MARKS[judgement.verdict]
    if judgement.verdict is Verdict.NOT_MEASURED:
        return f"{mark}: {judgement.reason}"
    found = [each.verdict for each in by_run if each.verdict is not Verdict.NOT_MEASURED]
    if all(verdict is judgement.verdict for verdict in found):
        return mark
    return f"{mark} (in {found.count(judgement.verdict)} of {len(found)} runs)"


def _limits(judgements: Sequence[Judgement], limits: Mapping[str, Limit], results: Results) -> Iterator[str]:
    missed = [judgement.goal for judgement in judgements if judgement.verdict is Verdict.MISSED]
    if missed:
        yield from ("", "### What stands in the way", "")
        for goal in missed:
            limit = limits.get(goal.name)
            known = "not known yet" if limit is None else limit.text(results)
            yield f"- **{goal.name}** ({goal.bar}): {known}"


def _median(found: Summary | None) -> str:
    return "" if found is None else number(found.median)


def _spread(found: Summary | None) -> str:
    return "" if found is None or found.count == 1 else f"{number(found.low)} … {number(found.high)}"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]
