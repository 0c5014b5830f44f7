"""Each candidate has a process and a folder of its own; neither outlives its time."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import _load
from bench.workloads import WORKLOADS
from postbus.ops.bench.harness import Failed, NotInstalled, Outcome
from postbus.ops.bench.model import Candidate, PeerMissingError, Sample
from postbus.ops.bench.processes import Processes, read_answer
from tests.bench.steps import TINY, candidate_named

ROOT = Path(__file__).parents[2]


def run(candidate: Candidate, base: Path) -> Outcome:
    processes = Processes(catalogue="bench.workloads", effort=TINY, base=base)
    return processes.run(WORKLOADS["recovery"], candidate)


def test_what_a_process_answers_is_a_sample_or_a_reason() -> None:
    """A peer that is not there is no failure."""
    assert read_answer({"figures": {"rate": 1}, "settings": "WAL"}) == Sample(
        figures={"rate": 1.0}, settings="WAL"
    )
    assert read_answer({"missing": "no peer"}) == NotInstalled("no peer")
    assert isinstance(read_answer({}), Failed)


def test_a_peer_that_is_not_installed_is_named() -> None:
    """The row says what to install."""
    with pytest.raises(PeerMissingError, match="queue-of-dreams is not installed; pip install"):
        _load("queue_of_dreams", "queue-of-dreams")


def test_a_candidate_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """A benchmark can't hang, and its folder is removed."""
    impatient = replace(WORKLOADS["recovery"].candidate("stuck-100"), time_limit=0.01)

    assert run(impatient, tmp_path) == Failed("took longer than 0.01 s")
    assert list(tmp_path.iterdir()) == []


def test_a_candidate_that_raises_is_reported_with_its_error(tmp_path: Path) -> None:
    """The last line of the traceback is the reason."""
    outcome = run(candidate_named("nobody"), tmp_path)

    assert isinstance(outcome, Failed)
    assert "recovery has no candidate 'nobody'" in outcome.reason
    assert list(tmp_path.iterdir()) == []


def test_the_command_measures_reports_and_cleans_up(tmp_path: Path) -> None:
    """The smallest workload, once, with every kind of report."""
    files, reports = tmp_path / "files", tmp_path / "reports"
    files.mkdir()
    reports.mkdir()
    arguments = ["--quick", "--only", "recovery", "--rounds", "1", "--seconds", "0.01", "--dir", str(files)]
    written = ["--json", str(reports / "out.json"), "--markdown", str(reports / "out.md")]
    finished = subprocess.run(
        [sys.executable, "-m", "bench", *arguments, *written],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    assert "recovery of 100, ms" in finished.stdout
    assert "| postbus: 100 events left in processing |" in (reports / "out.md").read_text("utf-8")
    assert json.loads((reports / "out.json").read_text("utf-8"))["workloads"][0]["name"] == "recovery"
    assert list(files.iterdir()) == []


def test_nothing_that_is_named_so_is_an_error() -> None:
    """A typing error is not taken for a run without goals."""
    finished = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 2
    assert "nothing is named nothing" in finished.stderr
