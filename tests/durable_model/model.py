"""What durable subscribers have to have done: kept beside the store, by the handlers themselves."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from postbus.events import Event
from postbus.policy.patterns import matches

MAX_ATTEMPTS = 3
FOR_EVER = 10_000
# The subscriber that publishes an event for some of those that it gets, and its event.
ANSWERING, ANSWERED = "saga", "saga.answered"


@dataclass(frozen=True)
class Trouble:
    """What an event does to a subscriber: its first attempts fail, or end the process."""

    fails: int = 0
    kills: int = 0


@dataclass
class Reign:
    """The time from one claim of a subscriber to the next."""

    handled: list[int] = field(default_factory=list)
    # Everything that was handled is written: nothing of it may come again.
    is_complete: bool = False
    is_released: bool = False
    is_fenced: bool = False

    def release(self, was_busy: bool) -> None:
        """Its owner lets go, unless another one has taken over already."""
        self.is_released = not self.is_fenced
        self.is_complete = self.is_released and not was_busy

    def fence(self) -> None:
        """Another instance takes over."""
        self.is_fenced = not self.is_released


@dataclass
class Story:
    """What one subscriber was seen to do."""

    id: str
    patterns: tuple[str, ...]
    # So many events may come again after an owner that did not let go.
    most_repeated: int
    # Effects that are written with the checkpoint: they come once, whatever happens.
    is_exact: bool = False
    reigns: list[Reign] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    begun: list[int] = field(default_factory=list)
    handled: set[int] = field(default_factory=set)
    buried: set[int] = field(default_factory=set)
    # Buried before their handler was ever called: the process died again and again at that moment.
    unseen: set[int] = field(default_factory=set)
    checked_up_to: int = 0

    def wants(self, event_type: str) -> bool:
        """Whether it has subscribed to this type."""
        return any(matches(pattern, event_type) for pattern in self.patterns)

    def begin(self, sequence: int) -> int:
        """An attempt begins; which one of its event it is."""
        self.attempts[sequence] += 1
        self.begun.append(sequence)
        return self.attempts[sequence]

    def end(self, sequence: int) -> None:
        """The attempt succeeded."""
        self.reigns[-1].handled.append(sequence)
        self.handled.add(sequence)

    def bury(self, sequences: Iterable[int]) -> None:
        """They are dead letters from now on."""
        self.buried.update(sequences)
        self.unseen |= self.buried - self.attempts.keys()

    def fence(self) -> None:
        """Another instance takes over."""
        if self.reigns:
            self.reigns[-1].fence()

    def check_moves_to(self, position: int, wanted: Iterable[int], burials: Iterable[int]) -> None:
        """A checkpoint is never ahead of what was processed."""
        unprocessed = set(wanted) - self.handled - self.buried - set(burials)
        assert not unprocessed, f"{self.id} moves its checkpoint to {position} past {sorted(unprocessed)}"
        self.checked_up_to = max(self.checked_up_to, position)

    def check_owner(self, was_fenced: bool) -> None:
        """Who was fenced writes no more."""
        assert not was_fenced, f"{self.id} has another owner, and this one could write"

    def check_order(self) -> None:
        """Events come for the first time in the order of the log."""
        first = [sequence for sequence in dict.fromkeys(self.begun) if sequence not in self.unseen]
        assert first == sorted(first), f"{self.id} got {first}"

    def check_repetitions(self) -> None:
        """An event comes again only after an owner that did not let go, and then few do."""
        for index, reign in enumerate(self.reigns):
            here = set(reign.handled)
            assert len(here) == len(reign.handled), f"{self.id} got {reign.handled} in one ownership"
            repeated = here & {sequence for later in self.reigns[index + 1 :] for sequence in later.handled}
            most = 0 if reign.is_complete else self.most_repeated
            assert len(repeated) <= most, f"{self.id} got {sorted(repeated)} again; at most {most} may"


@dataclass
class Seen:
    """What the store has at one moment, or a little later in the order of these fields."""

    positions: dict[str, int]
    # Unresolved dead letters by subscriber, and how many errors each tells of.
    dead: dict[str, dict[int, int]]
    # What transactional subscribers, projections and sagas have written, one number for each event.
    effects: dict[str, list[int]]
    log: dict[int, Event]


class Model:
    """The stories of all subscribers."""

    def __init__(self, stories: Iterable[Story]) -> None:
        self.stories = {story.id: story for story in stories}
        self.acknowledged: set[str] = set()
        self.broken: list[AssertionError] = []
        """What was found wrong where the subscribers would go on nevertheless."""

    def check_unbroken(self) -> None:
        """Nothing was found wrong in the midst of things."""
        if self.broken:
            raise self.broken[0]

    def check(self, seen: Seen, *, is_atomic: bool) -> None:
        """What must hold at every moment."""
        self.check_unbroken()
        for story in self.stories.values():
            position = seen.positions.get(story.id, 0)
            dead = seen.dead[story.id].keys()
            # A process may die after its transaction was written, and before it learns of that.
            story.handled.update(seen.effects.get(story.id, ()))
            passed = {number for number, event in seen.log.items() if story.wants(event.type)}
            passed = {number for number in passed if number <= position}
            lost = passed - story.handled - dead
            assert not lost, f"{story.id} is at {position} and has not processed {sorted(lost)}"
            story.check_order()
            story.check_repetitions()
            if story.is_exact:
                effects = seen.effects[story.id]
                assert len(effects) == len(set(effects)), f"{story.id} took effect twice: {effects}"
                assert passed - dead <= set(effects), f"{story.id} lacks {passed - dead - set(effects)}"
                if is_atomic:
                    assert passed - dead == set(effects), f"{story.id} is at {position}: {effects}"
        missing = self.acknowledged - {event.id for event in seen.log.values()}
        assert not missing, f"published and not in the log: {missing}"
        answers = [event.payload["of"] for event in seen.log.values() if event.type == ANSWERED]
        answered = {number for number in seen.effects[ANSWERING] if is_answered(number)}
        assert len(answers) == len(set(answers)), f"answered twice: {answers}"
        assert answered <= set(answers), f"without an answer: {answered - set(answers)}"
        if is_atomic:
            assert answered == set(answers), f"answered and not known: {set(answers) - answered}"

    def check_end(self, seen: Seen) -> None:
        """What must hold once everything has come to rest."""
        self.check(seen, is_atomic=True)
        for story in self.stories.values():
            wanted = {number for number, event in seen.log.items() if story.wants(event.type)}
            assert max(wanted, default=0) <= seen.positions[story.id]
            for number, error_count in seen.dead[story.id].items():
                assert number in wanted
                assert error_count >= MAX_ATTEMPTS, f"{story.id} gave {number} up after {error_count}"
            if all(reign.is_complete for reign in story.reigns[:-1]):
                self._check_undisturbed(story, seen)

    def _check_undisturbed(self, story: Story, seen: Seen) -> None:
        """Without a death of its process a subscriber does exactly what it was told to."""
        for number, event in seen.log.items():
            if story.wants(event.type):
                fails = trouble_of(event, story.id).fails
                attempts = story.attempts[number]
                assert (number in seen.dead[story.id]) == (fails >= attempts)
                assert attempts == fails + 1 or (attempts >= MAX_ATTEMPTS and fails >= attempts)


def is_answered(number: int) -> bool:
    """Whether the saga answers this event; not all, so that some states wait for their checkpoint."""
    return number % 2 == 1


def trouble_of(event: Event, subscriber_id: str) -> Trouble:
    """What the event does to this subscriber; its publisher has put it into the payload."""
    fails, kills = (event.payload or {}).get(subscriber_id, (0, 0))
    return Trouble(fails, kills)
