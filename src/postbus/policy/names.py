"""What may be an event's type, an id, and a number of an event."""

import re
import unicodedata
import uuid

from postbus.errors import (
    InvalidEventFieldError,
    InvalidEventIdError,
    InvalidEventTypeError,
    InvalidPageError,
    InvalidSubscriberIdError,
)
from postbus.storable import LARGEST_NUMBER

_LONGEST_NAME = 255
# What makes a part's id of a subscriber's: "mail#3/8", and "mail#1023/1024" at most.
_PART_ENDING = re.compile(r"#[0-9]+/[0-9]+$")
_LONGEST_ENDING = len("#1023/1024")


def check_event_type(event_type: object) -> str:
    """The event type as a plain str; InvalidEventTypeError unless it is a dotted name.

    >>> check_event_type("order.placed")
    'order.placed'
    >>> check_event_type("order..placed")
    Traceback (most recent call last):
    ...
    postbus.errors.InvalidEventTypeError: event type 'order..placed' has an empty segment; expected ...
    """
    if not isinstance(event_type, str):
        raise InvalidEventTypeError(event_type, f"is of type {type(event_type).__qualname__}")
    flaw = find_name_flaw(event_type)
    if flaw is None and "*" in event_type:
        flaw = 'contains "*", which only patterns may'
    if flaw is not None:
        raise InvalidEventTypeError(event_type, flaw)
    # A StrEnum member is welcome; what is stored and handed on is its text alone.
    return str.__str__(event_type)


def check_event_id(event_id: object) -> str:
    """The event id as a plain str; InvalidEventIdError unless it is 1 to 255 printable characters.

    >>> check_event_id(uuid.UUID(int=7))
    '00000000-0000-0000-0000-000000000007'
    >>> check_event_id("")
    Traceback (most recent call last):
    ...
    postbus.errors.InvalidEventIdError: event id '' is empty; expected ...
    """
    text = _as_text(event_id)
    flaw = find_id_flaw(text)
    if flaw is not None:
        raise InvalidEventIdError(text, flaw)
    return str.__str__(text)


def check_subscriber_id(subscriber_id: object) -> str:
    """The id of a durable subscriber as a plain str; InvalidSubscriberIdError.

    >>> check_subscriber_id("projection:order-list")
    'projection:order-list'
    """
    flaw = find_id_flaw(subscriber_id)
    if flaw is None and _PART_ENDING.search(str.__str__(subscriber_id)):
        flaw = "ends as the id of a partition does"
    if flaw is not None:
        raise InvalidSubscriberIdError(subscriber_id, flaw)
    return str.__str__(subscriber_id)


def check_room_for_parts(subscriber_id: str) -> None:
    """Refuse an id that leaves no room for the number of a part behind it. InvalidSubscriberIdError."""
    if len(subscriber_id) > _LONGEST_NAME - _LONGEST_ENDING:
        raise InvalidSubscriberIdError(
            subscriber_id, f"is {len(subscriber_id)} characters long, and partitions need {_LONGEST_ENDING}"
        )


def check_id_field(name: str, value: object) -> str | None:
    """An id that an event may carry, such as its stream's, as a plain str; InvalidEventFieldError.

    >>> check_id_field("stream_id", uuid.UUID(int=7))
    '00000000-0000-0000-0000-000000000007'
    """
    if value is None:
        return None
    text = _as_text(value)
    if find_id_flaw(text) is not None:
        raise InvalidEventFieldError(name, value, "a string of 1 to 255 printable characters")
    return str.__str__(text)


def check_number_field(name: str, value: object, *, at_least: int) -> int | None:
    """A number that an event may carry, such as the expected version of its stream."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= LARGEST_NUMBER:
        raise InvalidEventFieldError(name, value, f"a whole number from {at_least} to {LARGEST_NUMBER}")
    return int(value)


def check_sequence(value: object) -> int:
    """A global sequence that somebody asks for; InvalidPageError.

    >>> check_sequence(7)
    7
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_NUMBER:
        raise InvalidPageError("global_sequence", value, f"a whole number from 0 to {LARGEST_NUMBER}")
    return int(value)


def find_id_flaw(text: object) -> str | None:
    """What keeps a value from being an id, or None.

    >>> find_id_flaw("")
    'is empty'
    """
    if not isinstance(text, str):
        return f"is of type {type(text).__qualname__}"
    if not text:
        return "is empty"
    if len(text) > _LONGEST_NAME:
        return f"is {len(text)} characters long"
    return None if text.isprintable() else "contains a character that is not printable"


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, uuid.UUID) else value


def find_name_flaw(name: str) -> str | None:
    """What keeps a text from being a dotted name, or None; "*" is left to the caller.

    >>> find_name_flaw("order placed")
    "contains the character ' '"
    """
    if not name:
        return "is empty"
    if len(name) > _LONGEST_NAME:
        return f"is {len(name)} characters long, more than {_LONGEST_NAME}"
    if name[0] == "." or name[-1] == "." or ".." in name:
        return "has an empty segment"
    # Almost every name is printable and ends here. Format characters are not printable and
    # are fine all the same: emoji are joined by them, and several scripts need them.
    if name.isprintable() and " " not in name:
        return None
    return next((f"contains the character {char!r}" for char in name if _is_forbidden(char)), None)


def _is_forbidden(char: str) -> bool:
    return char.isspace() or unicodedata.category(char) in {"Cc", "Cs"}
