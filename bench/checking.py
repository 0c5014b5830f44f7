"""The check of a build: few rows, measured once more before they are called too slow."""

from collections.abc import Callable, Collection, Mapping, Sequence

from bench.recorded import WATCHED, Comparison, Pair, Ratio, compare
from postbus.ops.bench.harness import Results

ROUND_COUNT = 3

Measure = Callable[[Sequence[Pair], int], Results]


def check(
    pairs: Sequence[Pair],
    recorded: Mapping[Pair, Ratio],
    measure: Measure,
    say: Callable[[str], None],
    round_count: int = ROUND_COUNT,
) -> list[Comparison]:
    """Every pair beside what was recorded; those that look slow are measured again, and that counts."""
    first = compare(pairs, measure(pairs, round_count), recorded)
    suspicious = [each.pair for each in first if each.is_suspicious]
    if not suspicious:
        return first
    say(f"measured again, in more rounds: {', '.join(map(str, suspicious))}")
    # Far more of them, so that a noisy second can't decide twice.
    results = measure(suspicious, 2 * round_count + 1)
    again = {each.pair: each for each in compare(suspicious, results, recorded)}
    return [again.get(each.pair, each) for each in first]


def pairs_among(rows: Collection[str]) -> list[Pair]:
    """The watched ratios between rows, each row named as --only names it."""
    return [pair for pair in WATCHED if set(pair.rows) <= set(rows)]
