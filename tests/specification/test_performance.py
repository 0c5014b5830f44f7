"""What the specifications want measured is a goal of the benchmark, at their bar or a higher one.

A test measures nothing: the machine has other things to do. `python -m bench` does, and docs/benchmarks.md
has what it found.
"""

import math

import pytest

from bench.goals import GOALS

# Workload, candidate, figure, and the specification's bar.
AT_LEAST = {
    "publish throughput > 1000 events/sec": ("publish-full", "postbus-1", "rate", 1000),
    # Ten thousand events in less than a minute.
    "catch-up < 1 minute for 10k events": ("catch-up", "postbus-batched", "rate", 10_000 / 60),
    "catch-up < 1 minute for 10k events (PostgreSQL)": (
        "pg-catch-up",
        "postbus-transactional",
        "rate",
        10_000 / 60,
    ),
}
AT_MOST = {
    "dispatch latency (p99) < 10 ms": ("latency", "postbus-100", "dispatch_p99", 10),
    "DLQ query < 50 ms for 10k dead events": ("dead-letters", "page-10k", "page_p50", 50),
    "startup recovery < 500 ms for 100 stuck events": ("recovery", "stuck-100", "duration", 500),
    "< 10 ms added latency": ("pg-latency", "postbus-500", "p99", 10),
}


@pytest.mark.parametrize(("workload", "candidate", "key", "bar"), AT_LEAST.values(), ids=AT_LEAST)
def test_what_is_to_be_reached_is_a_goal(workload: str, candidate: str, key: str, bar: float) -> None:
    """sqlite-event-bus, Performance Expectations; 0002, section 10."""
    bars = [
        goal.at_least
        for goal in GOALS
        if (goal.workload, goal.candidate, goal.key, goal.against) == (workload, candidate, key, None)
    ]

    assert max((found for found in bars if found is not None), default=0) >= bar


@pytest.mark.parametrize(("workload", "candidate", "key", "bar"), AT_MOST.values(), ids=AT_MOST)
def test_what_is_not_to_be_exceeded_is_a_goal(workload: str, candidate: str, key: str, bar: float) -> None:
    """sqlite-event-bus, Performance Expectations; 0002, section 10."""
    bars = [
        goal.at_most
        for goal in GOALS
        if (goal.workload, goal.candidate, goal.key, goal.against) == (workload, candidate, key, None)
    ]

    assert min((found for found in bars if found is not None), default=math.inf) <= bar
