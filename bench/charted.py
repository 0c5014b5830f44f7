"""Which figures of a workload are drawn, and how a row becomes a bar."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.charts import Bar, Kind, draw
from postbus.ops.bench.harness import Row
from postbus.ops.bench.model import Candidate, Column, Workload

# Where the first column is not what the workload is about, or not all of it.
CHARTED: Mapping[str, tuple[str, ...]] = {
    "latency": ("publish_p99", "dispatch_p99"),
    "loop": ("rate", "ticker_p99"),
    "recovery": ("rate",),
    "growth": ("cost",),
    "log-growth": ("cost", "memory"),
    "pg-latency": ("p50", "p99"),
    "pg-fan-out": ("deliveries", "reads"),
    "pg-growth": ("catch_up_cost", "publish_cost", "memory"),
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and the name of its file."""

    file_name: str
    title: str
    svg: str


def charts_of(workload: Workload, rows: Sequence[Row]) -> Iterator[Chart]:
    """A chart for each figure that at least two rows have: one bar says no more than its number."""
    columns = _charted_columns(workload)
    for column in columns:
        bars = [bar for row in rows if (bar := _bar(row, column)) is not None]
        if sum(bar.figure is not None for bar in bars) > 1:
            title = workload.title if len(columns) == 1 else f"{workload.title}: {column.label}"
            name = workload.name if column is columns[0] else f"{workload.name}-{column.key}"
            yield Chart(f"{name.replace('_', '-')}.svg", title, draw(title, _axis(column), bars))


def kind_of(candidate: Candidate) -> Kind:
    """Ours by its label, the raw driver or a bare loop by its name; the rest are peers."""
    if candidate.label.startswith("postbus"):
        return Kind.POSTBUS
    is_raw = candidate.name.startswith("raw") or candidate.name.endswith("-alone")
    return Kind.RAW if is_raw else Kind.PEER


def _charted_columns(workload: Workload) -> list[Column]:
    keys = CHARTED.get(workload.name, (workload.columns[0].key,))
    return [column for column in workload.columns if column.key in keys]


def _bar(row: Row, column: Column) -> Bar | None:
    """None for a row that has other figures than this."""
    figure = row.summary(column.key) if row.problem is None else None
    if figure is None and row.problem is None:
        return None
    remark = "" if row.problem is None else f"not measured: {row.problem.reason}"
    return Bar(label=row.candidate.label, kind=kind_of(row.candidate), figure=figure, remark=remark)


def _axis(column: Column) -> str:
    if column.unit == "/s":
        return f"{column.label}, more is better"
    unit = f", {column.unit}" if column.unit else ""
    return f"{column.label}{unit}, less is better"
