"""What every database can hold: texts, and numbers up to a largest one."""

import uuid

from postbus.errors import EventNotFoundError

LARGEST_NUMBER = 2**63 - 1


def is_storable(text: str) -> bool:
    """Whether it has neither a NUL nor half of a surrogate pair.

    >>> is_storable("a\\0b")
    False
    """
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def storable_id(value: object) -> str | None:
    """An id that somebody looks up, as a plain str; None if nothing can be stored under it.

    >>> storable_id(uuid.UUID(int=7))
    '00000000-0000-0000-0000-000000000007'
    """
    text = str(value) if isinstance(value, uuid.UUID) else value
    return str.__str__(text) if isinstance(text, str) and is_storable(text) else None


def event_id_to_find(value: str) -> str:
    """The same for the id of an event or of a dead letter. EventNotFoundError."""
    event_id = storable_id(value)
    if event_id is None:
        raise EventNotFoundError(value)
    return event_id
