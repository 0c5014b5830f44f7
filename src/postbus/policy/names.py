"""What may be an event's type and an event's id."""

import unicodedata
import uuid

from postbus.errors import InvalidEventIdError, InvalidEventTypeError

_LONGEST_NAME = 255


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
    if isinstance(event_id, uuid.UUID):
        return str(event_id)
    if not isinstance(event_id, str):
        raise InvalidEventIdError(event_id, f"is of type {type(event_id).__qualname__}")
    if not event_id:
        raise InvalidEventIdError(event_id, "is empty")
    if len(event_id) > _LONGEST_NAME:
        raise InvalidEventIdError(event_id[:_LONGEST_NAME], f"is {len(event_id)} characters long")
    if not event_id.isprintable():
        raise InvalidEventIdError(event_id, "contains a character that is not printable")
    return str.__str__(event_id)


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
