"""Files with long tests do not come last."""

from pathlib import Path

from tests.order import longest_first

A, B, C, D = (Path(f"test_{name}.py") for name in "abcd")


def test_a_file_comes_before_those_whose_tests_are_shorter() -> None:
    """Its longest test decides, however few it has."""
    keys = longest_first([(A, 120), (A, 120), (B, 600), (B, 120), (C, 240)])

    assert sorted(keys, key=keys.__getitem__) == [B, C, A]


def test_of_files_as_long_the_one_with_more_tests_comes_first() -> None:
    """And otherwise they stay where they were."""
    keys = longest_first([(A, 120), (D, 120), (B, 120), (B, 120), (C, 120)])

    assert sorted(keys, key=keys.__getitem__) == [B, A, D, C]
