"""The command: what is measured, where, for how long, and what its end means for the exit code."""

import json
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from postbus.ops.bench import machine
from postbus.ops.bench.harness import Failed, Outcome, Results, run_rounds
from postbus.ops.bench.model import Candidate, Effort, Workload
from postbus.ops.bench.processes import Processes, StoppedError
from postbus.ops.bench.report import json_workloads
from postbus.ops.cli.bench.display import make_display
from postbus.ops.cli.bench.stopping import Stop
from postbus.ops.cli.bench.subjects import Subject, on_postgres, on_sqlite
from postbus.ops.cli.bench.tables import show_results

_DEFAULT_ROUNDS = 3
_DEFAULT_SECONDS = 0.5
_MOST_SECONDS = 20.0
_WARM_UP_SHARE = 0.2
# A slow machine has fewer rounds, unless somebody asks for them.
_LIMIT = 40.0
# Of what is written to a file or a pipe.
_WIDTH = 120


@click.command(short_help="Measure postbus beside the raw driver, on this machine.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="SQLite: make the files in this folder.  [default: that for temporary files]",
)
@click.option(
    "--dsn",
    metavar="DSN",
    help="Measure on PostgreSQL instead: postgresql://user@host/database of a user who may create databases. "
    "Nothing in that database is touched.",
)
@click.option(
    "--rounds", type=click.IntRange(1), help=f"[default: {_DEFAULT_ROUNDS}, fewer on a slow machine]"
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, _MOST_SECONDS, min_open=True),
    default=_DEFAULT_SECONDS,
    show_default=True,
    help="How long each run measures.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write every sample to this file.",
)
def bench(
    folder: Path | None, dsn: str | None, rounds: int | None, seconds: float, json_path: Path | None
) -> None:
    """Measure what a bus gets done on this machine, beside the raw driver.

    Each runs in a process of its own, and they take turns round by round, so that whatever else goes
    on here hits both alike: the ratios tell more than the figures. Takes about half a minute.
    """
    if folder is not None and dsn is not None:
        raise click.UsageError("--dir is for SQLite: with --dsn the server keeps the files.")
    if json_path is not None and not json_path.parent.is_dir():
        raise click.BadParameter(f"the folder {json_path.parent} does not exist", param_hint="--json")
    stop = Stop()
    with stop.watch(), tempfile.TemporaryDirectory(prefix="postbus-bench-", dir=folder) as base:
        subject = on_sqlite(Path(base)) if dsn is None else on_postgres(dsn)
        _warn_of_noise(Path(base) if dsn is None else None)
        described = {**machine.describe(subject.packages), **subject.described}
        processes = Processes(
            catalogue=subject.catalogue,
            effort=Effort(seconds=seconds, warm_up=seconds * _WARM_UP_SHARE),
            base=Path(base),
            is_stopping=stop.is_wanted,
        )
        try:
            results = _measure(subject, processes, rounds)
        except StoppedError:
            click.echo("Stopped.", err=True)
            raise click.exceptions.Exit(stop.exit_code) from None
    round_count = max(len(row.outcomes) for row in results.rows)
    described["run"] = f"rounds: {round_count}, seconds of each run: {seconds:g}"
    described["load at the end"] = machine.load()
    _report(described, results, json_path)
    if any(isinstance(row.problem, Failed) for row in results.rows):
        raise click.exceptions.Exit(1)


def _warn_of_noise(base: Path | None) -> None:
    if base is not None and machine.is_in_memory(base):
        click.echo(f"{base.parent} is kept in memory: choose a folder on a disk with --dir", err=True)
    if machine.is_busy():
        click.echo(f"Others are at work on this machine (load {machine.load()}): expect noise", err=True)


def _measure(subject: Subject, processes: Processes, rounds: int | None) -> Results:
    """Round by round; unless so many rounds were asked for, only those for which there is time."""
    round_count = rounds or _DEFAULT_ROUNDS
    began = time.monotonic()

    def may_begin(round_number: int) -> bool:
        expected = (time.monotonic() - began) * (round_number + 1) / round_number
        return rounds is not None or expected <= _LIMIT

    def run(workload: Workload, candidate: Candidate) -> Outcome:
        display.begin(workload, candidate)
        with subject.new_place() as fill_folder:
            return processes.run(workload, candidate, fill_folder)

    selection = {name: (each, each.candidates) for name, each in subject.workloads.items()}
    candidate_count = sum(len(candidates) for _, candidates in selection.values())
    with make_display(round_count, candidate_count) as display:
        return run_rounds(selection, round_count, run, display.end, may_begin)


def _report(described: dict[str, str], results: Results, json_path: Path | None) -> None:
    if json_path is not None:
        report = {"machine": described, "workloads": json_workloads(results)}
        json_path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    show_results(console, described, results)
