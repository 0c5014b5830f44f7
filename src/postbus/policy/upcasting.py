"""Upcasters: payloads of old versions, brought up to today's step by step."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from postbus.config import check_whole_number
from postbus.errors import InvalidConfigError, UpcastError
from postbus.events import Event
from postbus.policy.names import check_event_type

Upcaster = Callable[[Any], object]


class Upcasters:
    """Which function takes the payload of which event type from one version to the next.

    >>> from datetime import UTC, datetime
    >>> NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> upcasters = Upcasters()
    >>> upcasters.register("order.placed", 1, lambda payload: {**payload, "currency": "EUR"})
    >>> event = Event(id="1", type="order.placed", payload={"total": 7}, created_at=NOON)
    >>> today = upcasters.upcast(event)
    >>> today.payload, today.schema_version
    ({'total': 7, 'currency': 'EUR'}, 2)
    """

    def __init__(self) -> None:
        self.steps: dict[str, dict[int, Upcaster]] = {}
        """By event type and the version from which they lead on."""

    def register(self, event_type: str, from_version: int, upcaster: Upcaster) -> None:
        """From now on *upcaster* takes the payload of version *from_version* to the next one.

        It returns the new payload and leaves the one it is given as it is: other handlers and
        later attempts see that one too. InvalidConfigError, InvalidEventTypeError.
        """
        checked_type = check_event_type(event_type)
        check_whole_number("from_version", from_version, at_least=1)
        name = f"upcaster of {checked_type} from version {from_version}"
        if not callable(upcaster) or inspect.iscoroutinefunction(upcaster):
            raise InvalidConfigError(name, upcaster, "a plain function of the payload")
        steps = self.steps.setdefault(checked_type, {})
        if from_version in steps:
            raise InvalidConfigError(name, upcaster, "no second one: this step has an upcaster already")
        steps[from_version] = upcaster

    def upcast(self, event: Event) -> Event:
        """The event as of the last version that its upcasters lead to; UpcastError if one of them fails.

        An event that was stored without a version is of version 1. Of a purged event there is no
        payload to take along, only its version.
        """
        steps = self.steps.get(event.type)
        if steps is None:
            return event
        stored_version = 1 if event.schema_version is None else event.schema_version
        version, payload = stored_version, event.payload
        while (upcaster := steps.get(version)) is not None:
            if event.purged_at is None:
                payload = _take_step(event.type, version, upcaster, payload)
            version += 1
        if version == stored_version:
            return event
        return msgspec.structs.replace(event, payload=payload, schema_version=version)


def _take_step(event_type: str, from_version: int, upcaster: Upcaster, payload: object) -> object:
    try:
        return upcaster(payload)
    except Exception as error:
        # Here the user's code ends and ours begins: it may raise anything.
        raise UpcastError(event_type, from_version, f"{type(error).__qualname__}: {error}") from error
