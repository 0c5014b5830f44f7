"""What may happen to a bus, as values: a failing test prints them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.durable_model.model import FOR_EVER, MAX_ATTEMPTS
from tests.durable_model.process import SUBSCRIBERS

TYPES = ("order.placed", "order.paid", "user.created")


@dataclass(frozen=True)
class Item:
    """One event, and the trouble it makes: by subscriber, how many attempts fail and how many kill."""

    type: str
    stream_id: str | None = None
    trouble: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Publish:
    """One event, or several in one transaction."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Run:
    """Everybody works for a while."""

    turns: int


@dataclass(frozen=True)
class Pause:
    """A subscriber is paused."""

    subscriber_id: str


@dataclass(frozen=True)
class Resume:
    """It goes on."""

    subscriber_id: str


@dataclass(frozen=True)
class Resubscribe:
    """A subscriber is unsubscribed and, in the same breath, subscribed anew."""

    subscriber_id: str


@dataclass(frozen=True)
class Restart:
    """The bus is shut down in good order, and another one started."""


@dataclass(frozen=True)
class Crash:
    """The process dies at its so-manyth call of the store from now, before or after it; 0: at once."""

    call: int = 0
    after: bool = False


@dataclass(frozen=True)
class Fence:
    """Another instance takes a subscriber over, does nothing, and is gone: in good order, or killed."""

    subscriber_id: str
    releases: bool


@dataclass(frozen=True)
class BeBusy:
    """The database refuses the next calls."""

    times: int


@dataclass(frozen=True)
class RetryDeadLetters:
    """Somebody has all dead letters of a subscriber retried."""

    subscriber_id: str


@dataclass(frozen=True)
class LetTimePass:
    """For the checkpoints that are written after a delay."""

    seconds: int


Command = (
    Publish
    | Run
    | Pause
    | Resume
    | Resubscribe
    | Restart
    | Crash
    | Fence
    | BeBusy
    | RetryDeadLetters
    | LetTimePass
)

_subscriber_ids = st.sampled_from(SUBSCRIBERS)
_failures = [(1, 0), (2, 0), (MAX_ATTEMPTS, 0), (FOR_EVER, 0)]
_deaths = [(0, 1), (0, 2), (0, FOR_EVER), (2, 1)]
_incidents: list[st.SearchStrategy[Command]] = [
    st.builds(Pause, _subscriber_ids),
    st.builds(Resume, _subscriber_ids),
    st.builds(Resubscribe, _subscriber_ids),
    st.builds(Restart),
    st.builds(BeBusy, st.integers(1, 10)),
    st.builds(RetryDeadLetters, _subscriber_ids),
    st.builds(LetTimePass, st.integers(1, 10)),
]
_crashes: list[st.SearchStrategy[Command]] = [
    st.builds(Crash),
    st.builds(Crash, st.integers(1, 60), st.booleans()),
]
_fences: list[st.SearchStrategy[Command]] = [st.builds(Fence, _subscriber_ids, st.booleans())]


def _items(troubles: list[tuple[int, int]]) -> st.SearchStrategy[Item]:
    """Most of them are harmless."""
    made = st.lists(st.tuples(_subscriber_ids, st.sampled_from(troubles)), min_size=1, max_size=3).map(dict)
    return st.builds(
        Item,
        st.sampled_from(TYPES),
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 3).flatmap(lambda chance: st.just({}) if chance else made),
    )


def _commands(
    troubles: list[tuple[int, int]], incidents: list[st.SearchStrategy[Command]]
) -> st.SearchStrategy[list[Command]]:
    """Rounds: when something happens there must be something to lose, and time to lose it."""
    publishes = st.builds(Publish, st.lists(_items(troubles), min_size=1, max_size=8).map(tuple))
    runs = st.builds(Run, st.sampled_from([0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]))
    rounds = st.tuples(publishes, runs, st.sampled_from(incidents).flatmap(lambda each: each), runs)
    return st.lists(rounds, min_size=2, max_size=12).map(
        lambda chosen: [command for each in chosen for command in each]
    )


# After a death subscribers take more care for a while, so they have to be seen without one as well.
commands = st.one_of(
    _commands(_failures, _incidents),
    _commands(_failures, _incidents + _fences * 3),
    _commands(_failures + _deaths, _incidents + _crashes + _fences),
)
