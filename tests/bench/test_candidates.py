"""Every candidate of a quick run works."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.__main__ import select
from postbus.ops.bench.measuring import PAYLOAD, PAYLOAD_BYTES, percentile
from postbus.ops.bench.model import Candidate, PeerMissingError, Tier, Workload
from tests.bench.steps import DURABLE, TINY

# Those on PostgreSQL take too long for a test: test_postgres.py runs some of them.
QUICK = [
    pytest.param(workload, candidate, id=f"{workload.name}/{candidate.name}")
    for workload, candidates in select(Tier.QUICK, []).values()
    for candidate in candidates
    if not workload.needs_postgres
]


def test_the_payload_has_the_size_it_claims() -> None:
    """Its JSON is what is stored."""
    assert len(json.dumps(PAYLOAD, separators=(",", ":"))) == PAYLOAD_BYTES


@pytest.mark.parametrize(("workload", "candidate"), QUICK)
def test_every_quick_candidate_gives_figures_for_its_columns(
    workload: Workload, candidate: Candidate, tmp_path: Path
) -> None:
    """A hundredth of a second is enough to see that it runs and says at which durability."""
    if candidate.prepare is not None:
        candidate.prepare(tmp_path)
    try:
        found = candidate.run(tmp_path, TINY)
    except PeerMissingError:
        return

    assert found.settings
    if candidate.label.startswith("postbus") and workload.name != "publish-normal":
        assert found.settings == DURABLE["sqlite"]
    assert {column.key for column in workload.columns} & set(found.figures)
    assert all(math.isfinite(value) for value in found.figures.values())


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], percent: int
) -> None:
    """The nearest rank: always a value that was measured."""
    found = percentile(values, percent)
    needed = math.ceil(len(values) * percent / 100)

    assert found in values
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed
