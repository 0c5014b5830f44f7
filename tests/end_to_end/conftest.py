"""What every test on real processes needs: a seed, a database file, and a history outside it."""

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.history import History


@pytest.fixture
def rng() -> random.Random:
    """Chance that can be repeated: a failure shows its seed, POSTBUS_TEST_SEED gives it again."""
    seed = int(os.environ.get("POSTBUS_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"POSTBUS_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database will be."""
    return tmp_path / "events.db"


@pytest.fixture
def history(tmp_path: Path) -> History:
    """What the processes tell."""
    return History(tmp_path / "history")


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """Thousands of failed attempts are on purpose: their warnings would bury the report of a failure."""
    logger = logging.getLogger("postbus")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)
