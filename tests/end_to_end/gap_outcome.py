"""The numbers of one campaign."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tests.end_to_end.children.gap_subscribers import SUBSCRIBERS, SYNCHRONOUS, TRANSACTIONAL
from tests.end_to_end.gap_checks import Evidence, count_repetitions
from tests.end_to_end.gap_transactions import COMMITTED, ROLLED_BACK, UNKNOWN
from tests.end_to_end.gap_watch import Wait


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened in one campaign."""

    seed: int
    evidence: Evidence
    seconds: float
    seconds_to_settle: float
    life_count: int
    kill_count: int
    pauses: list[float]
    waits: list[Wait]
    never_passed: list[int]

    def describe(self) -> str:
        """Its numbers."""
        told = self.evidence.transactions
        written = [each for each in told if each.kind != "publish"]
        outcomes = Counter(each.outcome for each in written)
        numbers = (
            f"{outcomes[COMMITTED]} committed, {outcomes[ROLLED_BACK]} rolled back, "
            f"{outcomes[UNKNOWN]} of unknown outcome; {len(told) - len(written)} calls of publish"
        )
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s",
            f"{len(written)} transactions: {numbers}",
            "  " + ", ".join(f"{kind} {n}" for kind, n in Counter(each.kind for each in told).most_common()),
            f"{len(self.evidence.stored)} events, up to the number {max(self.evidence.stored.values())}",
            f"{self.kill_count} kills of {self.life_count} processes with subscribers, "
            f"{len(self.evidence.server_away)} kills of the server",
            *(f"{each}: {self._delivered(each)}" for each in SUBSCRIBERS),
            f"settled {self.seconds_to_settle:.2f} s after the last writer",
            f"{len(self.waits)} dead numbers held up {SYNCHRONOUS}, restarts included, for "
            f"{_spread(each.in_all for each in self.waits)}; "
            "after the end of all that were at work with them for "
            f"{_spread(each.idle for each in self.waits)}",
        ]
        if self.pauses:
            lines.append(f"deliveries went on {_spread(self.pauses)} after the server was ready again")
        return "\n".join(lines)

    def _delivered(self, subscriber_id: str) -> str:
        count, again = len(self.evidence.of(subscriber_id)), count_repetitions(self.evidence, subscriber_id)
        if subscriber_id == TRANSACTIONAL:
            return f"{len(self.evidence.effects)} effects in {count} attempts"
        return f"{count} deliveries, {again} of them repetitions"


def _spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    median, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{median:.2f} s (median), {p99:.2f} s (p99), {ordered[-1]:.2f} s (longest)"
