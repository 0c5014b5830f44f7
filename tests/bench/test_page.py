"""The page of results: made from one run or several, measured now or read back from a file."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.goals import GOALS
from bench.judging import Goal, judge
from bench.limits import LIMITS, Limit, Shown
from bench.page import write_page
from bench.report import json_report
from bench.saved import Run, SavedRunError, read_run, together
from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import Failed, NotInstalled, Outcome, Results, Row
from tests.bench.steps import WORKLOAD, goal, results_of, sample

ROOT = Path(__file__).parents[2]
CATALOGUE = {WORKLOAD.name: WORKLOAD}


def run_of(date: str = "2026-01-01", **outcomes: Sequence[Outcome]) -> Run:
    return Run({"date": date, "cores": "2"}, results_of(**outcomes))


def page_of(
    folder: Path,
    *runs: Run,
    elsewhere: Sequence[Run] = (),
    goals: Sequence[Goal] = (),
    limits: Mapping[str, Limit] | None = None,
) -> str:
    write_page(folder, runs, elsewhere, goals, limits or {}, CATALOGUE)
    return (folder / "benchmarks.md").read_text("utf-8")


def outcomes_of(results: Results) -> dict[str, list[Outcome]]:
    return {row.candidate.name: row.outcomes for row in results.rows}


def save(path: Path, results: Results) -> Path:
    path.write_text(json.dumps(json_report({"cores": "2"}, results, [])), "utf-8")
    return path


def test_the_page_shows_machine_goals_charts_and_durability(tmp_path: Path) -> None:
    """Each part of a run is there, and every link leads somewhere."""
    run = run_of(ours=[sample(50.0), sample(70.0)], raw=[sample(100.0), sample(100.0)])
    page = page_of(tmp_path, run, goals=[goal(against="raw", at_least=0.5)])

    assert "| date | 2026-01-01 |" in page
    assert "1 reached, 0 missed, 0 not measured." in page
    assert "| [a goal](#work) | ≥ 0.5 | 0.600 | 0.500 … 0.700 | ✓ reached |" in page
    assert "## work\n" in page
    assert "| the ours | 60.0 (50.0 … 70.0) |  | 0.60 | 2 | WAL, synchronous=FULL |" in page
    [chart] = re.findall(r"!\[some work\]\((.*)\)", page)
    assert (tmp_path / chart).read_text("utf-8").startswith("<svg")


def test_a_missed_goal_says_what_stands_in_the_way(tmp_path: Path) -> None:
    """Or that nobody knows yet."""
    run = run_of(ours=[sample(50.0)])
    missed = goal(at_least=60)

    assert "- **a goal** (≥ 60): the disk" in page_of(
        tmp_path, run, goals=[missed], limits={"a goal": Limit("the disk")}
    )
    assert "- **a goal** (≥ 60): not known yet" in page_of(tmp_path, run, goals=[missed])
    assert "What stands in the way" not in page_of(tmp_path, run, goals=[goal(at_least=1)])


def test_a_limit_is_shown_by_figures_of_the_run_at_hand(tmp_path: Path) -> None:
    """Words alone would go out of date; a row that was not measured shows nothing."""
    run = run_of(ours=[sample(5.0)] * 2, peer=[sample(7.0), sample(8.0)], raw=[sample(10.0)] * 2)
    limit = Limit("the disk", (Shown("work", "peer", "raw"), Shown("work", "gone", "raw")))
    page = page_of(tmp_path, run, goals=[goal(at_least=60)], limits={"a goal": limit})

    assert "- **a goal** (≥ 60): the disk; work/peer ÷ raw: 0.750 (0.700 … 0.800)\n" in page


def test_goals_of_a_run_on_another_disk_are_judged_by_themselves(tmp_path: Path) -> None:
    """They change no verdict of the page; what was not measured there is left out."""
    here = Run({"cores": "2", "files in": "here"}, results_of(ours=[sample(50.0)], raw=[sample(100.0)]))
    there = Run(
        {"cores": "2", "files in": "there"},
        results_of(ours=[sample(40.0), sample(45.0)], raw=[sample(50.0)] * 2),
    )
    goals = [goal(against="raw", at_least=0.6), goal(against="peer", at_least=1)]
    page = page_of(tmp_path, here, elsewhere=[there], goals=goals)

    assert "0 reached, 1 missed, 1 not measured." in page
    _, _, beside = page.partition("### On another disk")
    table, _, _ = beside.partition("## work")
    assert [line for line in table.splitlines() if line.startswith("|")] == [
        "|  |  |",
        "|---|---|",
        "| runs | 1 |",
        "| files in | there |",
        "| goal | bar | files in here | files in there | lowest … highest | verdict there |",
        "|---|---:|---:|---:|---:|---|",
        "| a goal | ≥ 0.6 | 0.500 | 0.850 | 0.800 … 0.900 | ✓ reached |",
    ]
    assert "On another disk" not in page_of(tmp_path, here, goals=goals)


def test_a_goal_that_was_not_measured_stays_on_the_page(tmp_path: Path) -> None:
    """With the reason."""
    page = page_of(tmp_path, run_of(raw=[sample(1.0)]), goals=[goal(at_least=60)])

    assert "| not measured: not part of this run |" in page


def test_several_runs_show_what_each_of_them_found(tmp_path: Path) -> None:
    """The median over all rounds decides; a run that says otherwise is counted."""
    runs = [run_of(f"2026-01-0{day}", ours=[sample(rate)]) for day, rate in ((1, 50.0), (2, 70.0), (3, 80.0))]
    page = page_of(tmp_path, *runs, goals=[goal(at_least=60)])

    assert "| runs | 3 |" in page
    assert "| date | 2026-01-01; 2026-01-02; 2026-01-03 |" in page
    assert "| cores | 2 |" in page
    assert "| 70.0 | 50.0 … 80.0 | 50.0, 70.0, 80.0 | ✓ reached (in 2 of 3 runs) |" in page


def test_a_goal_that_some_runs_did_not_measure_says_which(tmp_path: Path) -> None:
    """The large run is made once, the others are repeated."""
    runs = [run_of(raw=[sample(1.0)]), run_of(ours=[sample(70.0)], raw=[sample(1.0)])]
    page = page_of(tmp_path, *runs, goals=[goal(at_least=60), goal(against="peer", at_least=1)])

    assert "| 70.0 |  | none, 70.0 | ✓ reached |" in page
    assert "|  |  |  | not measured: not part of this run |" in page


def test_charts_of_an_earlier_page_are_removed(tmp_path: Path) -> None:
    """A workload that is gone leaves nothing."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "old.svg").touch()
    page_of(tmp_path, run_of(ours=[sample(1.0)], raw=[sample(2.0)]))

    assert [path.name for path in (tmp_path / "benchmarks").iterdir()] == ["work.svg"]


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """Every sample, its durability, and why a row has none."""
    results = results_of(
        ours=[sample(50.0), sample(70.0)],
        raw=[sample(1.0), Failed("exit code 1")],
        peer=[NotInstalled("gone")],
    )
    run = read_run(save(tmp_path / "out.json", results), CATALOGUE)

    assert run.machine == {"cores": "2"}
    assert outcomes_of(run.results) == outcomes_of(results)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}, "workloads": [{}]}', '{"workloads": 3}'])
def test_a_file_that_is_no_run_is_refused(text: str, tmp_path: Path) -> None:
    """The error names it and what it should be."""
    path = tmp_path / "out.json"
    path.write_text(text, "utf-8")

    with pytest.raises(SavedRunError, match=r"out.json is not what `python -m bench --json` writes"):
        read_run(path, CATALOGUE)
    with pytest.raises(SavedRunError, match="can't be read: No such file"):
        read_run(tmp_path / "nothing.json", CATALOGUE)


def test_a_row_that_is_measured_no_more_is_refused(tmp_path: Path) -> None:
    """Its columns are not known any more."""
    path = save(tmp_path / "out.json", results_of(ours=[sample(1.0)]))

    with pytest.raises(SavedRunError, match=r"has a row work/ours, which is measured no more"):
        read_run(path, {})


def test_runs_together_divide_only_figures_of_the_same_round() -> None:
    """Also if a row sat out a run, or failed in the middle of one."""
    without_ours = Run({}, results_of(raw=[sample(1.0), sample(1.0)]))
    with_ours = Run({}, results_of(ours=[sample(50.0), sample(60.0)], raw=[sample(100.0), sample(100.0)]))
    failing = Run({}, results_of(ours=[Failed("exit code 1")], raw=[sample(7.0), sample(7.0)]))

    found = together([without_ours, with_ours], CATALOGUE).ratio("work", "rate", "ours", "raw")
    assert found is not None
    assert (found.low, found.high, found.count) == (0.5, 0.6, 2)
    found = together([failing, with_ours], CATALOGUE).ratio("work", "rate", "ours", "raw")
    assert found is not None
    assert (found.low, found.high, found.count) == (0.5, 0.6, 2)


def test_runs_together_count_only_rounds_that_were_measured() -> None:
    """A row that sat out a run has fewer."""
    runs = [run_of(raw=[sample(1.0)]), run_of(ours=[sample(2.0)], raw=[sample(1.0)])]
    together_ = together(runs, CATALOGUE)
    row = together_.row("work", "ours")

    assert isinstance(row, Row)
    assert row.problem is None
    assert row.settings == "WAL, synchronous=FULL"
    found = row.summary("rate")
    assert found is not None
    assert found.count == 1
    assert judge(goal(at_least=2), together_).found == found


def test_every_limit_is_about_a_goal() -> None:
    """A renamed goal takes its explanation along."""
    assert set(LIMITS) <= {each.name for each in GOALS}


def test_every_limit_is_shown_by_rows_that_are_measured() -> None:
    """And by none of ours: what we do is no limit."""
    rows = {f"{name}/{each.name}" for name, workload in WORKLOADS.items() for each in workload.candidates}
    shown = [each for limit in LIMITS.values() for each in limit.shown]
    named = {f"{each.workload}/{row}" for each in shown for row in (each.candidate, each.against)}

    assert named <= rows
    assert not [row for row in named if row.partition("/")[2].startswith("postbus")]


def run_bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_command_makes_the_page_and_the_record_again_from_a_file(tmp_path: Path) -> None:
    """Nothing is measured for that; the same run twice is two runs."""
    out, docs, recorded = str(tmp_path / "out.json"), tmp_path / "docs", tmp_path / "recorded.json"
    only = ["--only", "batch/postbus-stored", "--only", "batch/raw-stored"]
    measured = run_bench(
        "--quick", *only, "--rounds", "1", "--seconds", "0.01", "--dir", str(tmp_path), "--json", out
    )
    reported = run_bench("--from", out, "--from", out, "--docs", str(docs), "--record", str(recorded))

    assert measured.returncode == 0, measured.stderr
    assert reported.returncode == 0, reported.stderr
    assert "round 1" not in reported.stderr
    assert "| runs | 2 |" in (docs / "benchmarks.md").read_text("utf-8")
    assert (docs / "benchmarks" / "batch.svg").exists()
    assert list(json.loads(recorded.read_text("utf-8"))["ratios"]) == ["batch/postbus-stored ÷ raw-stored"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--check", "--from", "out.json"], "--check only compares"),
        (["--check", "--docs", "docs"], "--check only compares"),
        (["--from", "out.json", "--only", "batch"], "--from reports whole runs"),
        (["--from", "nothing.json"], "nothing.json can't be read"),
        (["--elsewhere", "out.json"], "--elsewhere is for the page"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str], words: str) -> None:
    """Before anything is measured."""
    finished = run_bench(*arguments)

    assert finished.returncode == 2
    assert words in finished.stderr
