"""In which order the files of the tests are given to the workers."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path


def longest_first(tests: Iterable[tuple[Path, float]]) -> dict[Path, tuple[float, int]]:
    """What to sort files by: where a test may take longest, then where most are.

    Each test is given as its file and the seconds that it may take. A file stays on one worker: a long
    one that comes last would leave the others with nothing to do.
    """
    longest: dict[Path, float] = defaultdict(float)
    counts: Counter[Path] = Counter()
    for file, seconds in tests:
        longest[file] = max(longest[file], seconds)
        counts[file] += 1
    return {file: (-longest[file], -counts[file]) for file in counts}
