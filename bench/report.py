"""Results as tables for people and as JSON for programs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from bench.judging import Judgement, Verdict
from postbus.ops.bench.harness import Failed, Results, Row
from postbus.ops.bench.model import Sample, Workload
from postbus.ops.bench.report import figure, json_workloads, number

Table = Sequence[Sequence[str]]
Renderer = Callable[[Table], Iterable[str]]

_MARKS = {Verdict.REACHED: "reached", Verdict.MISSED: "MISSED", Verdict.NOT_MEASURED: "not measured"}


def text_report(machine: Mapping[str, str], results: Results, judgements: Sequence[Judgement]) -> str:
    """For a terminal."""
    return "\n".join(_lines(machine, results, judgements, heading="{}", table=text_table)) + "\n"


def markdown_report(machine: Mapping[str, str], results: Results, judgements: Sequence[Judgement]) -> str:
    """For the documentation."""
    return "\n".join(_lines(machine, results, judgements, heading="## {}", table=markdown_table)) + "\n"


def json_report(
    machine: Mapping[str, str], results: Results, judgements: Sequence[Judgement]
) -> dict[str, object]:
    """Every sample, not only the medians."""
    return {
        "machine": dict(machine),
        "workloads": json_workloads(results),
        "goals": [
            {
                **asdict(judgement.goal),
                "verdict": judgement.verdict.value,
                "found": None if judgement.found is None else asdict(judgement.found),
                "reason": judgement.reason,
            }
            for judgement in judgements
        ],
    }


def text_table(table: Table) -> Iterator[str]:
    """Columns of equal width; the first and the last are text, the others figures."""
    widths = [max(len(row[index]) for row in table) for index in range(len(table[0]))]
    for row_number, row in enumerate(table):
        cells = [
            cell.ljust(width) if index in (0, len(row) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        if row_number == 0:
            yield "  ".join("-" * width for width in widths)


def markdown_table(table: Table) -> Iterator[str]:
    """The same as Markdown."""
    for row_number, row in enumerate(table):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        if row_number == 0:
            yield "|" + "|".join(["---", *["---:"] * (len(row) - 2), "---"]) + "|"


def workload_table(workload: Workload, rows: Sequence[Row], results: Results) -> Table:
    """A row for each candidate: its figures with their spread, its ratios, its durability."""
    heads = [column.label for column in workload.columns] + [ratio.label for ratio in workload.ratios]
    table = [["", *heads, "rounds", "durability"]]
    for row in rows:
        if row.problem is not None:
            word = "failed" if isinstance(row.problem, Failed) else "not measured"
            table.append([row.candidate.label, *[""] * len(heads), word, row.problem.reason])
            continue
        cells = [figure(row.summary(column.key), column.unit) for column in workload.columns]
        for ratio in workload.ratios:
            found = results.ratio(workload.name, ratio.key, row.candidate.name, ratio.baseline)
            cells.append("" if found is None else f"{found.median:.2f}")
        table.append([row.candidate.label, *cells, _round_count(row), row.settings])
    return table


def goal_table(judgements: Sequence[Judgement]) -> Table:
    """A row for each goal."""
    table = [["goal", "bar", "found", "lowest … highest", "verdict"]]
    for judgement in judgements:
        found = judgement.found
        verdict = _MARKS[judgement.verdict]
        table.append(
            [
                judgement.goal.name,
                judgement.goal.bar,
                "" if found is None else number(found.median),
                "" if found is None else f"{number(found.low)} … {number(found.high)}",
                f"{verdict} ({judgement.reason})" if judgement.reason else verdict,
            ]
        )
    return table


def _round_count(row: Row) -> str:
    # In runs that were put together a row may have sat out one of them.
    return str(sum(isinstance(outcome, Sample) and bool(outcome.figures) for outcome in row.outcomes))


def _lines(
    machine: Mapping[str, str],
    results: Results,
    judgements: Sequence[Judgement],
    heading: str,
    table: Renderer,
) -> Iterator[str]:
    yield from table([["machine", ""], *([name, value] for name, value in machine.items())])
    for workload, rows in results.by_workload():
        yield from ("", heading.format(f"{workload.name}: {workload.title}"), "")
        yield from table(workload_table(workload, rows, results))
        if workload.note:
            yield from ("", workload.note)
    counts = [f"{sum(j.verdict is verdict for j in judgements)} {verdict.value}" for verdict in Verdict]
    yield from ("", heading.format(f"goals: {', '.join(counts)}"), "")
    yield from table(goal_table(judgements))
