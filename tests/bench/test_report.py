"""Tables for people, JSON for programs."""

import json

from bench.judging import judge
from bench.report import json_report, markdown_table, text_table, workload_table
from postbus.ops.bench.harness import NotInstalled
from postbus.ops.bench.report import number
from tests.bench.steps import WORKLOAD, goal, results_of, sample


def test_a_row_shows_figures_with_spread_ratio_rounds_and_durability() -> None:
    """The ratio stands beside the absolute figure; what a row does not have stays empty."""
    results = results_of(ours=[sample(50.0), sample(70.0)], raw=[sample(100.0), sample(100.0)])

    table = workload_table(WORKLOAD, results.rows, results)

    assert table[0] == ["", "events/s", "p99", "÷ raw", "rounds", "durability"]
    assert table[1] == ["the ours", "60.0 (50.0 … 70.0)", "", "0.60", "2", "WAL, synchronous=FULL"]


def test_a_row_that_was_not_measured_says_why() -> None:
    """It is never left out."""
    results = results_of(peer=[NotInstalled("huey is not installed")])

    assert workload_table(WORKLOAD, results.rows, results)[1] == [
        "the peer", "", "", "", "not measured", "huey is not installed",
    ]  # fmt: skip


def test_tables_as_text_and_as_markdown() -> None:
    """Figures are aligned to the right, the first and the last column to the left."""
    table = [["", "n", "why"], ["a", "1,000", "x|y"], ["long", "2", "z"]]

    assert list(text_table(table)) == [
        "          n  why",
        "----  -----  ---",
        "a     1,000  x|y",
        "long      2  z",
    ]
    assert list(markdown_table(table)) == [
        "|  | n | why |",
        "|---|---:|---|",
        "| a | 1,000 | x\\|y |",
        "| long | 2 | z |",
    ]


def test_numbers_have_three_digits_that_count() -> None:
    """More would pretend a precision that no benchmark has."""
    assert [number(value) for value in (34120.4, 123.4, 12.34, 1.234, 0.4567)] == [
        "34,120", "123", "12.3", "1.23", "0.457",
    ]  # fmt: skip


def test_the_json_report_has_every_sample() -> None:
    """Another program can sum them up in its own way."""
    results = results_of(ours=[sample(50.0), sample(70.0)])
    report = json_report({"cores": "2"}, results, [judge(goal(at_least=1), results)])
    read = json.loads(json.dumps(report))

    assert read["workloads"][0]["rows"][0]["samples"] == [{"rate": 50.0}, {"rate": 70.0}]
    assert read["goals"][0]["verdict"] == "reached"
