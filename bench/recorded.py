"""Ratios against the raw driver, as recorded on a quiet machine, and whether a run is clearly below them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.goals import GOALS
from bench.report import Table
from postbus.ops.bench.harness import Results
from postbus.ops.bench.report import number

RECORDED = Path(__file__).with_name("recorded.json")

_KEY = "rate"
# A hot path that got twice as slow halves its ratio: that must be found, however wide the recorded spread.
_LEAST_SHARE = 0.6
# And less than a third is never an alarm, however narrow: another machine is no regression.
_LARGEST_SHARE = 0.7
_SHARE_OF_LOWEST = 0.75


class RecordedError(Exception):
    """There are no recorded ratios to compare with: record them with `python -m bench --record`."""


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A row of ours and the raw row that its rate is divided by."""

    workload: str
    candidate: str
    baseline: str

    def __str__(self) -> str:
        return f"{self.workload}/{self.candidate} ÷ {self.baseline}"

    @property
    def rows(self) -> tuple[str, str]:
        """Both rows, as --only names them."""
        return f"{self.workload}/{self.candidate}", f"{self.workload}/{self.baseline}"


# One for each hot path, and few, because every build measures them. One publisher is compared with a thread
# that is awaited, as ours is: without it the ratio would depend on how long the disk takes.
CHECKED = (
    Pair("publish-full", "postbus-1", "raw-thread"),
    Pair("publish-full", "postbus-100", "raw-lean"),
    Pair("batch", "postbus-stored", "raw-stored"),
    Pair("catch-up", "postbus-batched", "raw-decoded"),
    Pair("pg-append", "postbus-1", "raw-1"),
    Pair("pg-append", "postbus-100", "raw-8"),
    Pair("pg-batch", "postbus-1000", "raw-unnest-1000"),
    Pair("pg-catch-up", "postbus-batched-1000", "raw-decoded"),
)
WATCHED = tuple(
    dict.fromkeys(
        [
            *CHECKED,
            *(
                Pair(goal.workload, goal.candidate, goal.against)
                for goal in GOALS
                if goal.key == _KEY and goal.against is not None and goal.against.startswith("raw-")
            ),
        ]
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The ratios of the rounds, and *best*: the best round of one row divided by the best of the other.

    Others at work on a machine slow a row down and never speed it up, so the best rounds are disturbed least.
    """

    median: float
    low: float
    high: float
    best: float
    count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio now, and what was recorded; None if it could not be measured."""

    pair: Pair
    now: Ratio | None
    recorded: Ratio

    @property
    def allowed_share(self) -> float:
        """How much of the recorded ratio is enough: less if the recorded rounds differ much."""
        share = _SHARE_OF_LOWEST * self.recorded.low / self.recorded.median
        return min(max(share, _LEAST_SHARE), _LARGEST_SHARE)

    @property
    def is_suspicious(self) -> bool:
        """Below by one measure: worth measuring again."""
        return self.now is None or min(self._shares(self.now)) < self.allowed_share

    @property
    def is_below(self) -> bool:
        """Clearly below: the median over the rounds is, and the best rounds are, too."""
        return self.now is None or max(self._shares(self.now)) < self.allowed_share

    def _shares(self, now: Ratio) -> tuple[float, float]:
        return now.median / self.recorded.median, now.best / self.recorded.best


def find_ratio(pair: Pair, results: Results) -> Ratio | None:
    """The ratio in a run; None if one of the rows has no figures."""
    ours, raw = (results.row(pair.workload, name) for name in (pair.candidate, pair.baseline))
    found = results.ratio(pair.workload, _KEY, pair.candidate, pair.baseline)
    if ours is None or raw is None or found is None:
        return None
    best, best_raw = ours.summary(_KEY), raw.summary(_KEY)
    assert best is not None
    assert best_raw is not None
    return Ratio(
        median=found.median, low=found.low, high=found.high, best=best.high / best_raw.high, count=found.count
    )


def compare(pairs: Sequence[Pair], results: Results, recorded: Mapping[Pair, Ratio]) -> list[Comparison]:
    """Each pair of a run beside what was recorded. RecordedError for one that never was."""
    if missing := [str(pair) for pair in pairs if pair not in recorded]:
        raise RecordedError(f"never recorded: {', '.join(missing)}; see python -m bench --record")
    return [Comparison(pair, find_ratio(pair, results), recorded[pair]) for pair in pairs]


def write_recorded(path: Path, machine: Mapping[str, str], results: Results) -> list[Pair]:
    """Record every watched ratio of a run, in place of all that was recorded: one file, one machine."""
    found = {pair: ratio for pair in WATCHED if (ratio := find_ratio(pair, results)) is not None}
    ratios = {
        str(pair): {name: _short(value) for name, value in asdict(ratio).items()}
        for pair, ratio in found.items()
    }
    text = json.dumps({"machine": dict(machine), "ratios": ratios}, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", "utf-8")
    return list(found)


def read_recorded(path: Path) -> dict[Pair, Ratio]:
    """What was recorded about pairs that are still watched. RecordedError."""
    try:
        ratios = json.loads(path.read_text("utf-8"))["ratios"]
        return {pair: Ratio(**ratios[str(pair)]) for pair in WATCHED if str(pair) in ratios}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordedError(f"{path} is not what `python -m bench --record` writes: {error!r}") from error


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """For people: the ratio now, the recorded one, what is allowed, and the verdict."""
    return [
        ["ratio", "now", "best rounds", "recorded", "lowest … highest", "allowed", "verdict"],
        *_rows(comparisons),
    ]


def _rows(comparisons: Sequence[Comparison]) -> Iterator[list[str]]:
    for each in comparisons:
        recorded, now = each.recorded, each.now
        verdict = "clearly below" if each.is_below else "fine"
        yield [
            str(each.pair),
            "" if now is None else number(now.median),
            "" if now is None else number(now.best),
            number(recorded.median),
            f"{number(recorded.low)} … {number(recorded.high)}",
            f"≥ {number(each.allowed_share * recorded.median)}",
            "not measured" if now is None else verdict,
        ]


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.4g}")
