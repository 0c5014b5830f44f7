"""A ratio clearly below the recorded one fails the check; noise does not."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.__main__ import select
from bench.checking import ROUND_COUNT, check
from bench.recorded import (
    CHECKED,
    RECORDED,
    WATCHED,
    Comparison,
    Pair,
    Ratio,
    RecordedError,
    compare,
    comparison_table,
    find_ratio,
    read_recorded,
    write_recorded,
)
from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import Failed, Results, Row
from postbus.ops.bench.model import Tier
from tests.bench.steps import results_of, sample

ROOT = Path(__file__).parents[2]
PAIR = Pair("work", "ours", "raw")
QUIET = Ratio(median=0.6, low=0.57, high=0.63, best=0.6, count=9)
RESTLESS = Ratio(median=0.6, low=0.3, high=0.9, best=0.6, count=9)


def ratio(median: float, best: float | None = None) -> Ratio:
    return Ratio(median=median, low=median, high=median, best=best or median, count=3)


class Machine:
    """Measures rows that are made up: ours at *ratio* of raw, on a machine where others are at work."""

    def __init__(self, ratio: float, noise: float = 0.0, seed: int = 0) -> None:
        self.ratio, self.noise, self.rounds = ratio, noise, list[int]()
        self._random = random.Random(seed)

    def measure(self, pairs: Sequence[Pair], round_count: int) -> Results:
        assert pairs == [PAIR]
        self.rounds.append(round_count)
        ours = [sample(self._slowed(1000 * self.ratio)) for _ in range(round_count)]
        return results_of(ours=ours, raw=[sample(self._slowed(1000)) for _ in range(round_count)])

    def _slowed(self, rate: float) -> float:
        # Most runs lose a little, some nearly all: another process had the core.
        return rate / (1 + self._random.expovariate(1) * self.noise)

    def fails(self, recorded: Ratio) -> bool:
        [comparison] = check([PAIR], {PAIR: recorded}, self.measure, lambda words: None)
        return comparison.is_below


@pytest.mark.parametrize("recorded", [QUIET, RESTLESS])
def test_what_got_twice_as_slow_fails(recorded: Ratio) -> None:
    """However wide the recorded spread is."""
    assert Machine(0.5 * recorded.median).fails(recorded)


@pytest.mark.parametrize("recorded", [QUIET, RESTLESS])
def test_what_lost_less_than_a_third_does_not_fail(recorded: Ratio) -> None:
    """That may be another machine, another Python, another day."""
    assert not Machine(0.71 * recorded.median).fails(recorded)


def test_a_wide_recorded_spread_allows_more() -> None:
    """What was seen on a quiet machine is no alarm on a busy one."""
    assert Machine(0.65 * QUIET.median).fails(QUIET)
    assert not Machine(0.65 * RESTLESS.median).fails(RESTLESS)


def test_median_and_best_rounds_must_agree() -> None:
    """One of them alone makes us look again."""
    below_by_median = Comparison(PAIR, ratio(0.2, best=0.6), QUIET)
    below_by_best = Comparison(PAIR, ratio(0.6, best=0.2), QUIET)
    below_by_both = Comparison(PAIR, ratio(0.2, best=0.2), QUIET)

    assert [each.is_suspicious for each in (below_by_median, below_by_best, below_by_both)] == [True] * 3
    assert [each.is_below for each in (below_by_median, below_by_best, below_by_both)] == [False, False, True]


def test_a_busy_machine_hardly_ever_fails_the_check() -> None:
    """A thousand builds on a machine on which a run loses a third of its speed on average: none is red."""
    assert sum(Machine(0.6, noise=0.5, seed=seed).fails(QUIET) for seed in range(1_000)) == 0


def test_a_busy_machine_still_finds_what_got_twice_as_slow() -> None:
    """Of a thousand builds nearly all are red."""
    assert sum(Machine(0.3, noise=0.5, seed=seed).fails(QUIET) for seed in range(1_000)) > 900


def test_only_what_looks_slow_is_measured_again() -> None:
    """In more rounds, and that counts."""
    fine, slow = Machine(0.6), Machine(0.3)
    fine.fails(QUIET)
    slow.fails(QUIET)

    assert fine.rounds == [ROUND_COUNT]
    assert slow.rounds == [ROUND_COUNT, 2 * ROUND_COUNT + 1]


def test_a_moment_of_noise_is_forgiven() -> None:
    """The second measurement is as good as recorded."""
    machine = Machine(0.2)

    def measure(pairs: Sequence[Pair], round_count: int) -> Results:
        results = machine.measure(pairs, round_count)
        machine.ratio = 0.6
        return results

    [comparison] = check([PAIR], {PAIR: QUIET}, measure, lambda words: None)

    assert not comparison.is_below


def test_what_can_not_be_measured_fails() -> None:
    """A check that checks nothing is not green."""
    results = results_of(ours=[Failed("exit code 1")], raw=[sample(1.0)])
    [comparison] = compare([PAIR], results, {PAIR: QUIET})

    assert comparison.is_below
    assert comparison_table([comparison])[1][-1] == "not measured"


def test_the_best_rounds_are_divided_by_each_other() -> None:
    """Also if they are not the same round."""
    results = results_of(ours=[sample(10.0), sample(60.0)], raw=[sample(100.0), sample(40.0)])

    found = find_ratio(PAIR, results)

    assert found == Ratio(median=0.8, low=0.1, high=1.5, best=0.6, count=2)


def test_the_table_shows_now_recorded_and_allowed() -> None:
    """All that one needs to judge a red build."""
    table = comparison_table([Comparison(PAIR, ratio(0.3), QUIET), Comparison(PAIR, ratio(0.6), QUIET)])

    assert table[1] == [
        "work/ours ÷ raw", "0.300", "0.300", "0.600", "0.570 … 0.630", "≥ 0.420", "clearly below",
    ]  # fmt: skip
    assert table[2][-1] == "fine"


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    """With the machine, and four digits that count."""
    pair = CHECKED[0]
    workload = WORKLOADS[pair.workload]
    rates = {pair.candidate: 1.0, pair.baseline: 3.0}
    rows = [Row(workload, workload.candidate(name), [sample(rate)]) for name, rate in rates.items()]
    path = tmp_path / "recorded.json"

    assert write_recorded(path, {"cores": "2"}, Results(rows)) == [pair]
    assert read_recorded(path) == {
        pair: Ratio(median=0.3333, low=0.3333, high=0.3333, best=0.3333, count=1),
    }
    assert json.loads(path.read_text("utf-8"))["machine"] == {"cores": "2"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ratios": {"publish-full/postbus-1 ÷ raw-thread": {}}}'])
def test_a_file_that_records_nothing_is_refused(text: str, tmp_path: Path) -> None:
    """The error says which command writes it."""
    path = tmp_path / "recorded.json"
    path.write_text(text, "utf-8")

    with pytest.raises(RecordedError, match="is not what `python -m bench --record` writes"):
        read_recorded(path)
    with pytest.raises(RecordedError, match="never recorded: work/ours ÷ raw"):
        compare([PAIR], results_of(), {})


@pytest.mark.parametrize("pair", WATCHED, ids=str)
def test_every_watched_ratio_is_between_rows_of_a_quick_run(pair: Pair) -> None:
    """A renamed row takes its ratio along."""
    [(_, candidates)] = select(Tier.QUICK, pair.rows).values()

    assert {candidate.name for candidate in candidates} == {pair.candidate, pair.baseline}


def test_every_checked_ratio_is_recorded() -> None:
    """In enough rounds to tell the spread from."""
    recorded = read_recorded(RECORDED)

    assert [str(pair) for pair in CHECKED if pair not in recorded] == []
    assert min(each.count for each in recorded.values()) >= 5


def run_check(recorded: Path, files: Path, *only: str) -> "subprocess.CompletedProcess[str]":
    rows = [word for name in only for word in ("--only", name)]
    arguments = ["--check", str(recorded), "--rounds", "1", "--seconds", "0.01", "--dir", str(files), *rows]
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def record(path: Path, pair: str, value: float) -> None:
    same = dict.fromkeys(("median", "low", "high", "best"), value)
    path.write_text(json.dumps({"machine": {}, "ratios": {pair: {**same, "count": 9}}}), "utf-8")


def test_the_command_fails_when_a_ratio_is_clearly_below_and_only_then(tmp_path: Path) -> None:
    """Really measured, against ratios that nobody reaches and that everybody does."""
    recorded, pair = tmp_path / "recorded.json", "batch/postbus-stored ÷ raw-stored"
    rows = ("batch/postbus-stored", "batch/raw-stored")

    record(recorded, pair, 0.001)
    fine = run_check(recorded, tmp_path, *rows)
    record(recorded, pair, 1_000)
    slow = run_check(recorded, tmp_path, *rows)

    assert fine.returncode == 0, fine.stderr
    assert "fine" in fine.stdout
    assert slow.returncode == 1
    assert f"measured again, in more rounds: {pair}" in slow.stderr
    assert "clearly below" in slow.stdout


def test_a_check_of_nothing_is_an_error(tmp_path: Path) -> None:
    """A typing error is not taken for a green build."""
    record(tmp_path / "recorded.json", "batch/postbus-stored ÷ raw-stored", 1)
    finished = run_check(tmp_path / "recorded.json", tmp_path, "recovery")

    assert finished.returncode == 2
    assert "no ratio is watched among recovery/stuck-100" in finished.stderr
