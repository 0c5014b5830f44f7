"""Runs that were written with --json, read back; and several runs put together."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import Failed, NotInstalled, Outcome, Results, Row
from postbus.ops.bench.model import Candidate, Sample, Workload

Catalogue = Mapping[str, Workload]


class SavedRunError(Exception):
    """The file is no run that can be shown: measure again, or name another file."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where and when it took place, and what it gave."""

    machine: Mapping[str, str]
    results: Results


def read_run(path: Path, catalogue: Catalogue = WORKLOADS) -> Run:
    """The run that --json wrote to a file. SavedRunError."""
    try:
        report = json.loads(path.read_text("utf-8"))
        rows = [
            _read_row(path, row, workload["name"], catalogue)
            for workload in report["workloads"]
            for row in workload["rows"]
        ]
        return Run({str(name): str(value) for name, value in report["machine"].items()}, Results(rows))
    except OSError as error:
        raise SavedRunError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SavedRunError(f"{path} is not what `python -m bench --json` writes: {error!r}") from error


def together(runs: Sequence[Run], catalogue: Catalogue = WORKLOADS) -> Results:
    """All rounds of all runs as if they were one run; a ratio is still taken within a round."""
    return Results(
        [
            Row(workload, candidate, outcomes)
            for workload in catalogue.values()
            for candidate in workload.candidates
            if (outcomes := list(_all_rounds(runs, workload, candidate)))
        ]
    )


def machines_of(runs: Sequence[Run]) -> dict[str, str]:
    """What runs say about their machines: once if all say the same, else run by run."""
    described: dict[str, str] = {}
    for name in dict.fromkeys(name for run in runs for name in run.machine):
        values = [run.machine.get(name, "not known") for run in runs]
        described[name] = values[0] if len(set(values)) == 1 else "; ".join(values)
    return described


def _all_rounds(runs: Sequence[Run], workload: Workload, candidate: Candidate) -> Iterator[Outcome]:
    rows = [run.results.row(workload.name, candidate.name) for run in runs]
    settings = next((row.settings for row in rows if row is not None and row.settings), "")
    if all(row is None for row in rows):
        return
    for run, row in zip(runs, rows, strict=True):
        outcomes = [] if row is None else row.outcomes
        yield from outcomes
        # It sat these out; without them the rounds of its neighbours would be another's.
        for _ in range(_round_count(run.results, workload) - len(outcomes)):
            yield Sample(figures={}, settings=settings)


def _round_count(results: Results, workload: Workload) -> int:
    return max((len(row.outcomes) for row in results.rows if row.workload.name == workload.name), default=0)


def _read_row(path: Path, saved: Mapping[str, Any], workload_name: str, catalogue: Catalogue) -> Row:
    try:
        workload = catalogue[workload_name]
        candidate = workload.candidate(saved["name"])
    except KeyError as error:
        name = f"{workload_name}/{saved['name']}"
        raise SavedRunError(f"{path} has a row {name}, which is measured no more: measure again") from error
    outcomes: list[Outcome] = [
        Sample(figures=figures, settings=saved["durability"]) for figures in saved["samples"]
    ]
    if saved["problem"] is not None:
        outcomes.append((NotInstalled if saved["is_missing"] else Failed)(saved["problem"]))
    return Row(workload, candidate, outcomes)
