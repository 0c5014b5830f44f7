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
_troubles = st.sampled_from(
    [(1, 0), (2, 0), (MAX_ATTEMPTS, 0), (FOR_EVER, 0), (0, 1), (0, 2), (0, FOR_EVER), (2, 1)]
)
_items = st.builds(
    Item,
    st.sampled_from(TYPES),
    st.sampled_from([None, "a", "b"]),
    st.one_of(st.just({}), st.just({}), st.dictionaries(_subscriber_ids, _troubles, max_size=2)),
)
_publishes = st.builds(Publish, st.lists(_items, min_size=1, max_size=8).map(tuple))
_runs = st.builds(Run, st.integers(0, 60))

# By chance alone there would be little to lose when something happens: publishes come twice as often.
commands = st.lists(
    st.one_of(
        _publishes,
        _publishes,
        _runs,
        st.builds(Pause, _subscriber_ids),
        st.builds(Resume, _subscriber_ids),
        st.builds(Resubscribe, _subscriber_ids),
        st.builds(Restart),
        st.builds(Crash),
        st.builds(Crash, st.integers(1, 40), st.booleans()),
        st.builds(Fence, _subscriber_ids, st.booleans()),
        st.builds(BeBusy, st.integers(1, 10)),
        st.builds(RetryDeadLetters, _subscriber_ids),
        st.builds(LetTimePass, st.integers(1, 10)),
    ),
    min_size=1,
    max_size=40,
)
