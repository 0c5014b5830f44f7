"""How far a durable subscriber has come in the events of the page at hand, with the gaps on the way."""

from collections import deque
from collections.abc import Sequence

from postbus.delivery.deliveries import sequence_of
from postbus.events import Checkpoint, Event, Gap, GlobalSequence, LogPosition
from postbus.policy.gaps import SubscriberState


class Advance:
    """What was processed. Without any gap it is one number, and costs no more than that."""

    __slots__ = ("_missing", "_state", "contiguous")

    def __init__(self, checkpoint: Checkpoint) -> None:
        position = checkpoint.position
        head = position if checkpoint.head is None else checkpoint.head
        state = SubscriberState.restore(position, head, checkpoint.open)
        # None as long as there is no gap, neither open nor in the page at hand.
        self._state: SubscriberState | None = state if state.is_waiting_for_gap else None
        self._missing: deque[Gap] = deque()
        self.contiguous = state.contiguous
        """Everything up to here was processed, is a dead letter, dead or not wanted."""

    @property
    def state(self) -> SubscriberState:
        """A copy, to read on from."""
        return SubscriberState(self.contiguous) if self._state is None else self._state.copy()

    @property
    def position(self) -> LogPosition:
        """What to write."""
        return LogPosition(self.contiguous) if self._state is None else self._state.position

    @property
    def head(self) -> GlobalSequence:
        """The highest number that was processed."""
        return self.contiguous if self._state is None else self._state.head

    def is_processed(self, sequence: GlobalSequence) -> bool:
        """Whether this number is behind us."""
        if self._state is None:
            return sequence <= self.contiguous
        return self._state.is_delivered(sequence)

    def begin_page(self, missing: Sequence[Gap]) -> None:
        """The next events come from a page in which these numbers are missing."""
        self._missing = deque(missing)
        if missing and self._state is None:
            self._state = SubscriberState(self.contiguous)

    def take(self, sequence: GlobalSequence) -> None:
        """This event of the page was processed."""
        if self._state is None:
            self.contiguous = sequence
        else:
            if sequence > self._state.head:
                self._state.pass_to(sequence, self._missing_below(sequence))
            else:
                self._state.deliver(sequence)
            self.contiguous = self._state.contiguous

    def take_all(self, events: Sequence[Event]) -> None:
        """These events of the page were processed, one after the other."""
        if not events:
            return
        if self._state is not None:
            # What fills gaps comes first, each for itself; of what is beyond the head the last one tells all.
            head = self._state.head
            for event in events:
                if sequence_of(event) > head:
                    break
                self.take(sequence_of(event))
        self.take(sequence_of(events[-1]))

    def pass_over(self, sequences: Sequence[GlobalSequence]) -> None:
        """These numbers have turned up in open gaps and are not wanted."""
        for sequence in sequences:
            assert self._state is not None, "only gaps are filled"
            self._state.deliver(sequence)

    def end_page(self, up_to: GlobalSequence, settled: int) -> bool:
        """Nothing else of the page is wanted, and open numbers up to *settled* are dead; whether any were."""
        if self._state is None:
            self.contiguous = max(self.contiguous, up_to)
            return False
        self._state.pass_to(up_to, self._missing_below(up_to))
        dead = self._state.settle(settled)
        self._simplify()
        return bool(dead)

    def give_up(self, gaps: Sequence[Gap]) -> None:
        """Pass over these gaps, which the user does not want to wait for."""
        if self._state is None:
            self._state = SubscriberState(self.contiguous)
        self._state.pass_to(gaps[-1].last)
        self._state.settle(gaps[-1].last)
        self._simplify()

    def after(self, events: Sequence[Event]) -> "Advance":
        """How far it will be once these events of the page are processed as well."""
        other = object.__new__(Advance)
        other.contiguous, other._missing = self.contiguous, self._missing.copy()
        other._state = None if self._state is None else self._state.copy()
        other.take_all(events)
        return other

    def _missing_below(self, sequence: GlobalSequence) -> list[Gap]:
        passed = []
        while self._missing and self._missing[0].last < sequence:
            passed.append(self._missing.popleft())
        return passed

    def _simplify(self) -> None:
        assert self._state is not None, "there were gaps"
        self.contiguous = self._state.contiguous
        if not self._state.is_waiting_for_gap:
            self._state = None
