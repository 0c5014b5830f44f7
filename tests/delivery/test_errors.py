"""Every error of postbus travels: to another process, into a copy, with its words and its values."""

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

import postbus.errors
from postbus.errors import PostbusError

KINDS = [kind for kind in vars(postbus.errors).values() if inspect.isclass(kind)]
WAYS: dict[str, Callable[[PostbusError], object]] = {
    "the oldest pickle": lambda error: pickle.loads(pickle.dumps(error, 0)),
    "a pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
}


def made(kind: type[PostbusError]) -> PostbusError:
    """One with values that tell which is which."""
    if kind.__init__ is Exception.__init__:
        return kind("no such file", 7)
    parameters = list(inspect.signature(kind).parameters.values())
    return kind(*[number if each.annotation is int else each.name for number, each in enumerate(parameters)])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_out_as_it_went_in(
    kind: type[PostbusError], way: Callable[[PostbusError], object]
) -> None:
    """The constructor makes the message, so it must not be called with the message."""
    error = made(kind)
    error.add_note("while the order was placed")
    arrived = way(error)

    assert type(arrived) is kind
    assert isinstance(arrived, PostbusError)
    assert (str(arrived), arrived.args, vars(arrived)) == (str(error), error.args, vars(error))


def test_an_error_of_the_users_own_travels_as_well() -> None:
    """One with a constructor of its own and no word about pickling."""
    arrived = pickle.loads(pickle.dumps(OutOfStockError("shoe", count=3)))

    assert (str(arrived), arrived.item, arrived.count) == ("no 3 of shoe", "shoe", 3)


class OutOfStockError(PostbusError):
    def __init__(self, item: str, *, count: int) -> None:
        super().__init__(f"no {count} of {item}")
        self.item, self.count = item, count
