"""Results as tables with bars."""

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from postbus.ops.bench.harness import Failed, Results, Row
from postbus.ops.bench.model import RatioColumn, Workload
from postbus.ops.bench.report import number

_LABEL_WIDTH = 24
_RATIO_WIDTH, _BAR_WIDTH = 5, 8
_HOW_TO_READ = (
    "Medians over the rounds. ÷: divided by the row of the raw driver with this name, round by round; a full "
    "bar is as much as the raw driver's, + is more."
)


def show_results(console: Console, described: Mapping[str, str], results: Results) -> None:
    """Where and with what, then a table for each workload."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    for name, value in described.items():
        facts.add_row(name, Text(value))
    console.print(facts)
    block = "█" if console.encoding.startswith("utf") else "#"
    for workload, rows in results.by_workload():
        console.print()
        console.print(_table(workload, rows, results, block))
    console.print()
    console.print(_HOW_TO_READ, style="dim")


def draw_ratio(value: float, block: str = "█") -> str:
    """A ratio and its bar.

    >>> draw_ratio(0.5), draw_ratio(12.345)
    (' 0.50 ████', '12.35 ████████+')
    """
    more = "+" if round(value, 2) > 1 else ""
    return f"{value:{_RATIO_WIDTH}.2f} {block * max(1, round(min(value, 1.0) * _BAR_WIDTH))}{more}"


def _table(workload: Workload, rows: Sequence[Row], results: Results, block: str) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", min_width=_LABEL_WIDTH)
    for column in workload.columns:
        table.add_column(column.label, justify="right", no_wrap=True)
        table.add_column("lowest … highest", justify="right", style="dim", no_wrap=True)
    for ratio in workload.ratios:
        table.add_column(ratio.label, min_width=_RATIO_WIDTH + _BAR_WIDTH + 2)
    for row in rows:
        table.add_row(Text(row.candidate.label), *_cells(row, results, block))
    return Group(Text(workload.title, "bold"), table, *_remarks(rows))


def _cells(row: Row, results: Results, block: str) -> Iterator[RenderableType]:
    if row.problem is not None:
        yield Text("failed" if isinstance(row.problem, Failed) else "not measured", "red")
        return
    for column in row.workload.columns:
        found = row.summary(column.key)
        unit = "" if column.unit == "/s" else f" {column.unit}"
        yield "" if found is None else Text(number(found.median) + unit, "bold")
        yield "" if found is None else f"{number(found.low)} … {number(found.high)}"
    for ratio in row.workload.ratios:
        yield _ratio(row, ratio, results, block)


def _ratio(row: Row, ratio: RatioColumn, results: Results, block: str) -> Text:
    # What the raw driver does in one way, divided by what it does in another, is not our business.
    is_raw = row.candidate.name.startswith("raw")
    found = results.ratio(row.workload.name, ratio.key, row.candidate.name, ratio.baseline)
    return Text("" if is_raw or found is None else draw_ratio(found.median, block), "cyan")


def _remarks(rows: Sequence[Row]) -> Iterator[Text]:
    settings = dict.fromkeys(row.settings for row in rows if row.settings)
    if settings:
        yield Text(f"durability: {'; '.join(settings)}", "dim")
    for row in rows:
        if row.problem is not None:
            yield Text(f"{row.candidate.label}: {row.problem.reason}", "red")
