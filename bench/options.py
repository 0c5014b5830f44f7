"""The options of `python -m bench`."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import checking
from bench.recorded import CHECKED, RECORDED, WATCHED
from postbus.ops.bench.model import Tier

_ROUNDS = {Tier.QUICK: 2, Tier.DEFAULT: 5, Tier.LARGE: 5}
_SECONDS = {Tier.QUICK: 0.3, Tier.DEFAULT: 0.8, Tier.LARGE: 0.8}
_RECORDING_ROUNDS = 9


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; what was not has its default."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="postbus, the raw driver and the peers, side by side"
    )
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
    parser.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="write benchmarks.md and its charts into a folder"
    )
    parser.add_argument(
        "--from", type=Path, action="append", default=[], dest="saved", metavar="FILE",
        help="measure nothing, report what --json has written; several files are shown as repeated runs",
    )  # fmt: skip
    parser.add_argument(
        "--elsewhere", type=Path, action="append", default=[], metavar="FILE",
        help="with --docs: a run on another disk that --json has written; its goals are shown beside",
    )  # fmt: skip
    parser.add_argument(
        "--record", type=Path, nargs="?", const=RECORDED, metavar="FILE",
        help="measure the ratios against the raw driver and record them; with --from: those of a run",
    )  # fmt: skip
    parser.add_argument(
        "--check", type=Path, nargs="?", const=RECORDED, metavar="FILE",
        help="measure a few rows for a minute; exit 1 if a ratio is clearly below the recorded one",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="exit 1 if a goal is missed or not measured")
    parser.add_argument("--list", action="store_true", help="show what would be measured")
    options = parser.parse_args(arguments)
    if options.check and (
        options.saved or options.record or options.docs or options.json or options.markdown
    ):
        parser.error("--check only compares: it reads no earlier run and writes nothing")
    if options.elsewhere and not options.docs:
        parser.error("--elsewhere is for the page: say with --docs where that is to be")
    if options.saved and options.only:
        parser.error("--from reports whole runs: leave out --only")
    _choose_rows(options)
    options.rounds = options.rounds or _ROUNDS[options.tier]
    options.seconds = options.seconds or _SECONDS[options.tier]
    return options


def _choose_rows(options: argparse.Namespace) -> None:
    """--check and --record are, if nothing else is said, quick runs of the rows that they are about."""
    pairs = CHECKED if options.check else WATCHED if options.record else ()
    if options.tier is None:
        options.tier = Tier.QUICK if pairs else Tier.DEFAULT
    if pairs and not options.saved:
        options.only = options.only or [row for pair in pairs for row in pair.rows]
        options.rounds = options.rounds or (checking.ROUND_COUNT if options.check else _RECORDING_ROUNDS)


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
