"""Figures as text for people, and as JSON for programs."""

from dataclasses import asdict

from postbus.ops.bench.harness import NotInstalled, Results, Row, Summary
from postbus.ops.bench.model import Sample


def json_workloads(results: Results) -> list[dict[str, object]]:
    """Every sample, not only the medians."""
    return [
        {"name": workload.name, "title": workload.title, "rows": [_json_row(row) for row in rows]}
        for workload, rows in results.by_workload()
    ]


def figure(summary: Summary | None, unit: str) -> str:
    """The median with its unit and, if there is one, the spread."""
    if summary is None:
        return ""
    suffix = "" if unit == "/s" else f" {unit}"
    if summary.count == 1:
        return f"{number(summary.median)}{suffix}"
    return f"{number(summary.median)}{suffix} ({number(summary.low)} … {number(summary.high)})"


def number(value: float) -> str:
    """Three digits that count, or all before the point.

    >>> number(34120.4), number(12.34), number(0.4567)
    ('34,120', '12.3', '0.457')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _json_row(row: Row) -> dict[str, object]:
    samples = [dict(outcome.figures) for outcome in row.outcomes if isinstance(outcome, Sample)]
    keys = sorted({key for sample in samples for key in sample})
    return {
        "name": row.candidate.name,
        "label": row.candidate.label,
        "durability": row.settings,
        "problem": None if row.problem is None else row.problem.reason,
        "is_missing": isinstance(row.problem, NotInstalled),
        "samples": samples,
        "summary": {key: asdict(found) for key in keys if (found := row.summary(key)) is not None},
    }
