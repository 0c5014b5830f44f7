"""`python -m bench`: postbus, the raw driver and the peers, side by side."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from functools import partial

from bench import checking
from bench.goals import GOALS
from bench.judging import Judgement, Verdict, judge
from bench.options import parse
from bench.page import write_page
from bench.pg import server
from bench.recorded import Pair, RecordedError, comparison_table, read_recorded, write_recorded
from bench.report import json_report, markdown_report, text_report, text_table
from bench.saved import Run, SavedRunError, machines_of, read_run, together
from bench.workloads import WORKLOADS
from postbus.ops.bench import machine
from postbus.ops.bench.harness import Failed, NotInstalled, Outcome, Results, Row, run_rounds
from postbus.ops.bench.model import Candidate, Effort, Sample, Tier, Workload
from postbus.ops.bench.postgres.candidates import leave_dsn
from postbus.ops.bench.postgres.databases import describe_server, new_database
from postbus.ops.bench.processes import Processes
from postbus.ops.bench.report import number

# A quick run on a slow machine has fewer rounds.
_QUICK_LIMIT = 50.0
_WARM_UP_SHARE = 0.2
_PACKAGES = (
    "postbus",
    "msgspec",
    "asyncpg",
    "huey",
    "persist-queue",
    "litequeue",
    "bubus",
    "eventsourcing",
    "pgqueuer",
    "procrastinate",
)

Selection = dict[str, tuple[Workload, Sequence[Candidate]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report, and say by the exit code whether the run can be believed."""
    options = parse(arguments)
    selection = select(options.tier, options.only)
    if options.list:
        print(_listing(selection))
        return 0
    if not selection:
        print(f"nothing is named {' or '.join(options.only)}; see --list", file=sys.stderr)
        return 2
    # So that folders are removed and children ended on a polite kill, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.check:
            return _check(selection, options)
        return _report([read_run(path) for path in options.saved] or [_run(selection, options)], options)
    except (SavedRunError, RecordedError) as error:
        print(error, file=sys.stderr)
        return 2


def _check(selection: Selection, options: argparse.Namespace) -> int:
    """1 if a ratio is clearly below the recorded one, or could not be measured."""
    recorded = read_recorded(options.check)
    rows = [f"{name}/{candidate.name}" for name, (_, chosen) in selection.items() for candidate in chosen]
    pairs = checking.pairs_among(rows)
    if not pairs:
        raise RecordedError(f"no ratio is watched among {', '.join(rows)}: name a raw row, too")
    _warn(options)
    with ExitStack() as stack:
        postgres = _start_postgres(stack, selection, options)

        def measure(pairs: Sequence[Pair], round_count: int) -> Results:
            only = [row for pair in pairs for row in pair.rows]
            return _measure(select(options.tier, only), options, postgres, round_count)

        comparisons = checking.check(
            pairs, recorded, measure, partial(print, file=sys.stderr), options.rounds
        )
    print("\n".join(text_table(comparison_table(comparisons))))
    return int(any(comparison.is_below for comparison in comparisons))


def _run(selection: Selection, options: argparse.Namespace) -> Run:
    _warn(options)
    described = {
        **machine.describe(_PACKAGES),
        "files in": machine.describe_folder(options.dir),
        "run": _describe_run(options),
    }
    with ExitStack() as stack:
        postgres = _start_postgres(stack, selection, options)
        if postgres is not None and not isinstance(postgres, NotInstalled):
            described["postgresql"] = describe_server(postgres)
        results = _measure(selection, options, postgres, options.rounds)
    described["load at the end"] = machine.load()
    return Run(described, results)


def _report(runs: Sequence[Run], options: argparse.Namespace) -> int:
    """Print, write what was asked for, and say by the exit code whether the run can be believed."""
    described = machines_of(runs)
    results = runs[0].results if len(runs) == 1 else together(runs)
    measured = {workload.name for workload, _ in results.by_workload()}
    judgements = [judge(goal, results) for goal in GOALS if goal.workload in measured]
    print(text_report(described, results, judgements))
    if options.json:
        text = json.dumps(json_report(described, results, judgements), indent=2, ensure_ascii=False)
        options.json.write_text(text + "\n", "utf-8")
    if options.markdown:
        options.markdown.write_text(markdown_report(described, results, judgements), "utf-8")
    if options.docs:
        write_page(options.docs, runs, [read_run(path) for path in options.elsewhere])
    if options.record:
        write_recorded(options.record, described, results)
    return exit_code(results, judgements, is_strict=options.strict)


def _warn(options: argparse.Namespace) -> None:
    if machine.is_in_memory(options.dir):
        print(f"{options.dir} is kept in memory: choose a folder on a disk with --dir", file=sys.stderr)
    if machine.is_busy():
        print(f"others are at work on this machine (load {machine.load()}): expect noise", file=sys.stderr)


def select(tier: Tier, only: Sequence[str]) -> Selection:
    """The candidates of a kind of run whose workload, or workload/candidate, matches a pattern."""
    selection: Selection = {}
    for workload in WORKLOADS.values():
        candidates = [
            candidate
            for candidate in workload.candidates
            if candidate.tier <= tier and _is_wanted(workload, candidate, only)
        ]
        if candidates:
            selection[workload.name] = (workload, candidates)
    return selection


def exit_code(results: Results, judgements: Sequence[Judgement], *, is_strict: bool) -> int:
    """1 if a candidate failed; with --strict also if a goal was missed or not measured."""
    if any(isinstance(row.problem, Failed) for row in results.rows):
        return 1
    return int(is_strict and any(judgement.verdict is not Verdict.REACHED for judgement in judgements))


def _start_postgres(
    stack: ExitStack, selection: Selection, options: argparse.Namespace
) -> str | NotInstalled | None:
    """The server, if one is needed; or why there is none, and the other rows are measured all the same."""
    if not any(workload.needs_postgres for workload, _ in selection.values()):
        return None
    try:
        return stack.enter_context(server.server_in(options.dir, options.dsn))
    except LookupError as error:
        return NotInstalled(str(error).splitlines()[0])


def _measure(
    selection: Selection,
    options: argparse.Namespace,
    postgres: str | NotInstalled | None,
    round_count: int,
) -> Results:
    effort = Effort(seconds=options.seconds, warm_up=options.seconds * _WARM_UP_SHARE)
    processes = Processes(catalogue="bench.workloads", effort=effort, base=options.dir)

    def run(workload: Workload, candidate: Candidate) -> Outcome:
        if postgres is None or not workload.needs_postgres:
            return processes.run(workload, candidate)
        if isinstance(postgres, NotInstalled):
            return postgres
        with new_database(postgres) as dsn:
            return processes.run(workload, candidate, partial(leave_dsn, dsn=dsn))

    def report(row: Row, round_number: int) -> None:
        print(f"round {round_number + 1} of {round_count}  {_progress(row)}", file=sys.stderr, flush=True)

    began = time.monotonic()

    def may_begin(round_number: int) -> bool:
        expected = (time.monotonic() - began) * (round_number + 1) / round_number
        has_time = options.tier is not Tier.QUICK or options.record or options.check
        return has_time or expected <= _QUICK_LIMIT

    return run_rounds(selection, round_count, run, report, may_begin)


def _describe_run(options: argparse.Namespace) -> str:
    return f"{options.tier.name.lower()}, up to {options.rounds} rounds of {options.seconds:g} s"


def _progress(row: Row) -> str:
    outcome = row.outcomes[-1]
    if isinstance(outcome, Sample):
        words = ", ".join(f"{key} {number(value)}" for key, value in outcome.figures.items())
    else:
        words = outcome.reason
    return f"{row.workload.name}/{row.candidate.name}: {words}"


def _is_wanted(workload: Workload, candidate: Candidate, only: Sequence[str]) -> bool:
    names = (workload.name, f"{workload.name}/{candidate.name}")
    return not only or any(fnmatch(name, pattern) for pattern in only for name in names)


def _listing(selection: Selection) -> str:
    lines: list[str] = []
    for workload, candidates in selection.values():
        lines.append(f"{workload.name}: {workload.title}")
        lines += [
            f"  {workload.name}/{candidate.name}  [{candidate.tier.name.lower()}]  {candidate.label}"
            for candidate in candidates
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
