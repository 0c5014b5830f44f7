"""Checks and encodes what a publisher gives, before anything is stored."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from postbus.errors import InvalidPayloadError
from postbus.events import Draft, EventStatus, NewEvent
from postbus.ids import new_event_id
from postbus.policy.names import check_event_id, check_event_type
from postbus.policy.payloads import check_metadata, encode_payload
from postbus.ports import Clock

# Types with ids inside ("order.123.shipped") must not fill the memory.
_MOST_KNOWN_TYPES = 10_000


class StatusFor(Protocol):
    """The status with which an event of this type is stored."""

    def __call__(self, event_type: str, *, wait: bool) -> EventStatus | None:
        """The status."""
        ...


class Drafts:
    """Makes drafts; raises before anything is stored."""

    def __init__(
        self, status_for: StatusFor, clock: Clock, id_factory: Callable[[], object], max_payload_bytes: int
    ) -> None:
        self._status_for, self._clock = status_for, clock
        self._id_factory, self._max_payload_bytes = id_factory, max_payload_bytes
        self._known_types: set[str] = set()

    def draft(
        self,
        event_type: str,
        payload: object,
        metadata: Mapping[str, str] | None,
        event_id: str | uuid.UUID | None,
        *,
        wait: bool,
    ) -> Draft:
        """One checked and encoded event."""
        if type(event_type) is not str or event_type not in self._known_types:
            event_type = self._check_type(event_type)
        return Draft(
            self._new_id() if event_id is None else check_event_id(event_id),
            event_type,
            encode_payload(payload, self._max_payload_bytes),
            None if metadata is None else check_metadata(metadata),
            self._clock.now(),
            self._status_for(event_type, wait=wait),
            event_id is not None,
        )

    def draft_many(self, items: Iterable[object], *, wait: bool) -> list[Draft]:
        """All items of publish_many."""
        return [self._draft_item(item, wait=wait) for item in items]

    def _draft_item(self, item: object, *, wait: bool) -> Draft:
        if isinstance(item, NewEvent):
            return self.draft(item.type, item.payload, item.metadata, item.event_id, wait=wait)
        if isinstance(item, tuple) and 1 <= len(item) <= 3:
            event_type, payload, metadata = (*item, None, None)[:3]
            return self.draft(event_type, payload, metadata, None, wait=wait)
        raise InvalidPayloadError(
            f"is of type {type(item).__qualname__}",
            "(type, payload), (type, payload, metadata) or a NewEvent",
            "an item of publish_many",
        )

    def _new_id(self) -> str:
        # Our own factory needs no check, and this is the hot path.
        return new_event_id() if self._id_factory is new_event_id else check_event_id(self._id_factory())

    def _check_type(self, event_type: object) -> str:
        checked = check_event_type(event_type)
        if len(self._known_types) >= _MOST_KNOWN_TYPES:
            self._known_types.clear()
        self._known_types.add(checked)
        return checked
