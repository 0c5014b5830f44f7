"""Events that several subscribers share: each gets its own, so that one may change a payload at will."""

from collections.abc import Sequence
from gc import is_tracked
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from postbus.events import Event

_CONTAINERS = (dict, list)


def own_copies(events: Sequence[Event]) -> list[Event]:
    """The same events, with nothing in common that could be changed.

    >>> from datetime import UTC, datetime
    >>> event = Event(id="1", type="a", payload={"b": [1]}, created_at=datetime.now(UTC))
    >>> [mine] = own_copies([event])
    >>> mine.payload["b"].append(2)
    >>> event.payload
    {'b': [1]}
    """
    # Every subscriber at the head lives on this function.
    copies = [event.__copy__() for event in events]  # type: ignore[attr-defined]
    nested = []
    for mine in copies:
        payload = mine.payload
        if type(payload) in _CONTAINERS:
            if is_tracked(payload):
                nested.append(mine)
            else:
                # A dict that the garbage collector does not look at holds no other container.
                force_setattr(mine, "payload", payload.copy())
        if mine.metadata is not None:
            force_setattr(mine, "metadata", dict(mine.metadata))
    try:
        # Of what was JSON it makes a deep copy.
        payloads = msgspec.to_builtins([mine.payload for mine in nested])
    except RecursionError:
        payloads = [_deep_copy(mine.payload) for mine in nested]
    for mine, payload in zip(nested, payloads, strict=True):
        force_setattr(mine, "payload", payload)
    return copies


def _deep_copy(payload: dict[str, Any] | list[Any]) -> dict[str, Any] | list[Any]:
    """However deep it is: what another program wrote may be just not too deep to be decoded."""
    copy = payload.copy()
    unfinished: list[Any] = [copy]
    while unfinished:
        container = unfinished.pop()
        for place, part in list(container.items() if type(container) is dict else enumerate(container)):
            if type(part) in _CONTAINERS:
                container[place] = part.copy()
                unfinished.append(container[place])
    return copy
