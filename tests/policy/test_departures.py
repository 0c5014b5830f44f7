"""Departures: that a dead letter has left is noticed, whatever is buried at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.policy.departures import Departures


class _Store:
    """Dead letters in a store, and how many of its burials the one process that makes them has counted."""

    def __init__(self, present_count: int) -> None:
        self.present_count = present_count
        self.made_count = self.uncounted = self.unfound = 0
        self.departures = Departures()
        self.look_count = 0

    def bury(self) -> None:
        self.present_count += 1
        self.uncounted += 1

    def count(self) -> None:
        if self.uncounted:
            self.uncounted -= 1
            self.made_count += 1

    def leave(self) -> None:
        if self.present_count:
            self.present_count -= 1
            self.unfound += 1

    def check(self, *, buried_meanwhile: int = 0) -> None:
        """Take the one number, let others go on, take the other; look back if that is due."""
        made_count, is_certain = self.made_count, not self.uncounted and not buried_meanwhile
        for _ in range(buried_meanwhile):
            self.bury()
        present_count = self.present_count
        if self.departures.are_new(made_count, present_count):
            self.look_count += 1
            self.unfound = 0
            self.departures.see(made_count, present_count)
        elif is_certain:
            self.departures.see(made_count, present_count)


steps = st.lists(
    st.sampled_from(["bury", "count", "leave", "check", "check while one is buried", "leave while it looks"])
)


def _go(store: _Store, step: str) -> None:
    match step:
        case "check while one is buried":
            store.check(buried_meanwhile=1)
        case "leave while it looks":
            made_count, present_count = store.made_count, store.present_count
            if store.departures.are_new(made_count, present_count):
                store.unfound = 0
                store.leave()
                store.departures.see(made_count, present_count)
        case _:
            getattr(store, step)()


@given(st.integers(0, 5), steps)
def test_once_all_burials_are_counted_every_departure_has_been_looked_for(
    present: int, do: list[str]
) -> None:
    """In whatever order things happen, and however many burials had hidden it."""
    store = _Store(present)
    for step in do:
        _go(store, step)
    while store.uncounted:
        store.count()
    store.check()

    assert store.unfound == 0


@given(st.integers(0, 5), st.lists(st.sampled_from(["bury", "count", "check", "check while one is buried"])))
def test_where_nothing_leaves_nobody_looks_back_for_ever(present: int, do: list[str]) -> None:
    """Burials alone are no reason, but for those that were under way at the first look."""
    store = _Store(present)
    for step in do:
        _go(store, step)
    while store.uncounted:
        store.count()
    store.check()
    looked = store.look_count
    for _ in range(10):
        store.bury()
        store.check()
        store.count()
        store.check()

    assert store.look_count == looked


@pytest.mark.parametrize("present", [0, 7])
def test_at_first_one_has_to_look(present: int) -> None:
    """Nobody knows what was set back before anything was counted."""
    assert Departures().are_new(0, present)
