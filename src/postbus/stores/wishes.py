"""Which wish for a retry an attempt answers, so that its failure does not end one that came later."""

from typing import Self

import msgspec

from postbus.events import DeadLetter


class _WantedId(str):
    """The id of a dead letter as it was read for a retry: whoever tells of the outcome gives it back."""

    __slots__ = ("wish",)
    wish: object

    def __new__(cls, dead_letter_id: str, wish: object) -> Self:
        wanted = super().__new__(cls, dead_letter_id)
        wanted.wish = wish
        return wanted


def as_wanted(letter: DeadLetter, wish: object) -> DeadLetter:
    """The letter, which remembers the wish for which it was read; *wish* is the store's own affair."""
    return msgspec.structs.replace(letter, dead_letter_id=answering(letter.dead_letter_id, wish))


def answering(dead_letter_id: str, wish: object) -> str:
    """The id in the outcome of an attempt that was made for this wish."""
    return _WantedId(dead_letter_id, wish)


def wish_of(dead_letter_id: str) -> object:
    """The wish for which a letter with this id was read; None: it was not read for one.

    >>> wish_of("the same id from elsewhere") is None
    True
    """
    return dead_letter_id.wish if isinstance(dead_letter_id, _WantedId) else None
