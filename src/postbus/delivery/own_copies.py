"""Events that several subscribers share: each gets its own, so that one may change a payload at will."""

from copy import copy
from typing import Any

from msgspec.structs import force_setattr

from postbus.events import Event

_SCALARS = frozenset({str, int, float, bool, type(None)})


def own_copy(event: Event) -> Event:
    """The same event, with nothing in common that could be changed.

    >>> from datetime import UTC, datetime
    >>> event = Event(id="1", type="a", payload={"b": [1]}, created_at=datetime.now(UTC))
    >>> mine = own_copy(event)
    >>> mine.payload["b"].append(2)
    >>> event.payload
    {'b': [1]}
    """
    payload, metadata = event.payload, event.metadata
    if type(payload) in _SCALARS and metadata is None:
        return event
    mine = copy(event)
    force_setattr(mine, "payload", _copied(payload))
    if metadata is not None:
        force_setattr(mine, "metadata", dict(metadata))
    return mine


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: item if type(item) in _SCALARS else _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [item if type(item) in _SCALARS else _copied(item) for item in value]
    return value
