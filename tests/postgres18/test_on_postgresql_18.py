"""The contracts and the rule for gaps once more, on the newest PostgreSQL that is supported."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.postgres.binaries import find, find_version, version_of

VERSION = 18
ROOT = Path(__file__).parents[2]
TESTS = {
    "contracts": ["tests/contracts"],
    "gaps": ["tests/gaps", "tests/specification/test_out_of_order.py"],
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("paths", TESTS.values(), ids=TESTS)
def test_what_holds_on_the_server_that_was_found_holds_on_postgresql_18(paths: Sequence[str]) -> None:
    """A run of its own, with the programs of that version; where they were found anyway it has been made."""
    if "POSTBUS_TEST_DSN" not in os.environ and version_of(find()) == VERSION:
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment.pop("POSTBUS_TEST_DSN", None)
    environment["POSTBUS_TEST_PG_BIN"] = str(find_version(VERSION))
    # On the embedded stores they have run already.
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short",
         "-k", "not memory and not sqlite", *paths],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout[-20_000:]
