"""The tools that read the code agree with it; a failure prints what the tool said."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(*arguments: str) -> None:
    """Run Python with *arguments* in the project's root; any exit code but 0 fails the test."""
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        pytest.fail(f"{' '.join(arguments)}\n\n{finished.stdout}", pytrace=False)


@pytest.mark.timeout(300)
def test_the_types_are_right() -> None:
    """mypy accepts source, tests and benchmarks in strict mode."""
    check("-m", "mypy")


def test_the_code_follows_the_rules() -> None:
    """ruff finds nothing to complain about."""
    check("-m", "ruff", "check")


def test_the_code_is_formatted() -> None:
    """ruff would format every file as it is."""
    check("-m", "ruff", "format", "--check")


def test_imports_follow_the_layers() -> None:
    """No module imports from a layer above it, or from a neighbour."""
    # import-linter has no __main__, so `-m` can't start it.
    check("-c", "from importlinter.cli import lint_imports_command as check; check(['--no-cache'])")
