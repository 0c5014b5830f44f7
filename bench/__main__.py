"""`python -m bench`: postbus, the raw driver and the peers, side by side."""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from bench import machine
from bench.goals import GOALS
from bench.harness import Failed, NotInstalled, Outcome, Results, Row, run_in_process, run_rounds
from bench.judging import Judgement, Verdict, judge
from bench.model import Candidate, Effort, Sample, Tier, Workload
from bench.pg import server
from bench.report import json_report, markdown_report, number, text_report
from bench.workloads import WORKLOADS
from tests.postgres.existing import Postgres

_ROUNDS = {Tier.QUICK: 2, Tier.DEFAULT: 5, Tier.LARGE: 5}
_SECONDS = {Tier.QUICK: 0.3, Tier.DEFAULT: 0.8, Tier.LARGE: 0.8}
# A quick run on a slow machine has fewer rounds.
_QUICK_LIMIT = 50.0
_WARM_UP_SHARE = 0.2

Selection = dict[str, tuple[Workload, Sequence[Candidate]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report, and say by the exit code whether the run can be believed."""
    options = _parse(arguments)
    selection = select(options.tier, options.only)
    if options.list:
        print(_listing(selection))
        return 0
    if not selection:
        print(f"nothing is named {' or '.join(options.only)}; see --list", file=sys.stderr)
        return 2
    # So that folders are removed and children ended on a polite kill, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if machine.is_in_memory(options.dir):
        print(f"{options.dir} is kept in memory: choose a folder on a disk with --dir", file=sys.stderr)
    if machine.is_busy():
        print(f"others are at work on this machine (load {machine.load()}): expect noise", file=sys.stderr)
    described = {**machine.describe(options.dir), "run": _describe_run(options)}
    with ExitStack() as stack:
        postgres = _start_postgres(stack, selection, options)
        if postgres is not None and not isinstance(postgres, NotInstalled):
            described["postgresql"] = server.describe(postgres)
        results = _measure(selection, options, postgres)
    described["load at the end"] = machine.load()
    judgements = [judge(goal, results) for goal in GOALS if goal.workload in selection]
    print(text_report(described, results, judgements))
    if options.json:
        text = json.dumps(json_report(described, results, judgements), indent=2, ensure_ascii=False)
        options.json.write_text(text + "\n", "utf-8")
    if options.markdown:
        options.markdown.write_text(markdown_report(described, results, judgements), "utf-8")
    return exit_code(results, judgements, is_strict=options.strict)


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
) -> Postgres | NotInstalled | None:
    """The server, if one is needed; or why there is none, and the other rows are measured all the same."""
    if not any(workload.needs_postgres for workload, _ in selection.values()):
        return None
    try:
        return stack.enter_context(server.server_in(options.dir, options.dsn))
    except LookupError as error:
        return NotInstalled(str(error).splitlines()[0])


def _measure(
    selection: Selection, options: argparse.Namespace, postgres: Postgres | NotInstalled | None
) -> Results:
    effort = Effort(seconds=options.seconds, warm_up=options.seconds * _WARM_UP_SHARE)

    def run(workload: Workload, candidate: Candidate) -> Outcome:
        if postgres is None or not workload.needs_postgres:
            return run_in_process(workload, candidate, effort, options.dir)
        if isinstance(postgres, NotInstalled):
            return postgres
        with server.database_on(postgres) as dsn:
            tell = partial(server.leave_dsn, dsn=dsn)
            return run_in_process(workload, candidate, effort, options.dir, tell)

    def report(row: Row, round_number: int) -> None:
        print(f"round {round_number + 1} of {options.rounds}  {_progress(row)}", file=sys.stderr, flush=True)

    began = time.monotonic()

    def may_begin(round_number: int) -> bool:
        expected = (time.monotonic() - began) * (round_number + 1) / round_number
        return options.tier is not Tier.QUICK or expected <= _QUICK_LIMIT

    return run_rounds(selection, options.rounds, run, report, may_begin)


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


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        dest="tier",
        action="store_const",
        const=Tier.QUICK,
        help="small files and short logs only",
    )
    size.add_argument(
        "--large",
        dest="tier",
        action="store_const",
        const=Tier.LARGE,
        help="with 10 million events in a file or log (5 GB)",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help="a workload or workload/candidate, * allowed; may be given several times",
    )  # fmt: skip
    parser.add_argument("--rounds", type=_count, help="rounds of every workload (5; 2 with --quick)")
    parser.add_argument(
        "--seconds", type=_seconds, help="seconds that each run measures (0.8; 0.3 with --quick)"
    )
    parser.add_argument(
        "--dir", type=_folder, default=Path(tempfile.gettempdir()), help="where the files are made"
    )
    parser.add_argument(
        "--dsn", type=_dsn,
        help="a running PostgreSQL whose user may create databases, instead of one started in --dir",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a goal is missed or not measured")
    parser.add_argument("--list", action="store_true", help="show what would be measured")
    parser.set_defaults(tier=Tier.DEFAULT)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or _ROUNDS[options.tier]
    options.seconds = options.seconds or _SECONDS[options.tier]
    return options


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("expected 1 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 20:
        raise argparse.ArgumentTypeError("expected more than 0 and at most 20")
    return value


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path


def _dsn(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise argparse.ArgumentTypeError("expected postgresql://user:password@host:port/database")
    return text


if __name__ == "__main__":
    sys.exit(main())
