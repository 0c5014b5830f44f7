"""What tests of several instances need."""

from pathlib import Path

import pytest

from tests.end_to_end.history import History


@pytest.fixture
def history(tmp_path: Path) -> History:
    """What the instances tell."""
    return History(tmp_path / "history")
