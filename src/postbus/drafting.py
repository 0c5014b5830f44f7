"""Checks and encodes what is published or appended, before anything is stored."""

import uuid
from collections.abc import Callable, Iterable, Mapping

import msgspec

from postbus.errors import (
    InvalidEventFieldError,
    InvalidEventIdError,
    InvalidEventTypeError,
    InvalidMetadataError,
    InvalidPayloadError,
    PostbusError,
)
from postbus.events import Draft, EventStatus, NewEvent
from postbus.ids import new_event_id
from postbus.policy.names import check_event_id, check_event_type, check_id_field, check_number_field
from postbus.policy.payloads import check_metadata, encode_payload
from postbus.ports import Clock, StatusFor

# Types with ids inside ("order.123.shipped") must not fill the memory.
_MOST_KNOWN_TYPES = 10_000

_EXPECTED_ITEM = "(type, payload), (type, payload, metadata) or a NewEvent"
# What one item of several may be refused with.
_ITEM_ERRORS = (
    InvalidPayloadError,
    InvalidMetadataError,
    InvalidEventTypeError,
    InvalidEventIdError,
    InvalidEventFieldError,
)
_EXPECTED_ITEMS = f"a list or another iterable of events, each {_EXPECTED_ITEM}"


class Drafts:
    """Makes drafts; raises before anything is stored."""

    def __init__(
        self, status_for: StatusFor, clock: Clock, id_factory: Callable[[], object], max_payload_bytes: int
    ) -> None:
        self._status_for, self._clock = status_for, clock
        # Our own factory needs no check, and this is the hot path.
        self._new_id = new_event_id if id_factory is new_event_id else lambda: check_event_id(id_factory())
        self._max_payload_bytes = max_payload_bytes
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

    def draft_new(self, new: NewEvent, *, wait: bool) -> Draft:
        """One checked and encoded event with all its options."""
        draft = self.draft(new.type, new.payload, new.metadata, new.event_id, wait=wait)
        stream_id = check_id_field("stream_id", new.stream_id)
        expected_version = check_number_field("expected_version", new.expected_version, at_least=0)
        if expected_version is not None and stream_id is None:
            raise InvalidEventFieldError(
                "expected_version", expected_version, "a stream_id with it: only a stream has a version"
            )
        return msgspec.structs.replace(
            draft,
            stream_id=stream_id,
            expected_version=expected_version,
            actor_id=check_id_field("actor_id", new.actor_id),
            correlation_id=check_id_field("correlation_id", new.correlation_id),
            causation_id=check_id_field("causation_id", new.causation_id),
            schema_version=check_number_field("schema_version", new.schema_version, at_least=1),
        )

    def draft_many(self, items: Iterable[object], *, wait: bool) -> list[Draft]:
        """All items of publish_many; an error says which of them it is about."""
        if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
            raise InvalidPayloadError(f"is of type {type(items).__qualname__}", _EXPECTED_ITEMS, "events")
        # What is the same for all is asked once: an import lives on this loop.
        now, limit, new_id = self._clock.now(), self._max_payload_bytes, self._new_id
        statuses: dict[str, EventStatus | None] = {}
        drafts: list[Draft] = []
        try:
            for item in items:
                if type(item) is tuple and len(item) == 2 and type(item[0]) is str:
                    event_type, payload = item
                    if event_type not in statuses:
                        statuses[self._check_type(event_type)] = self._status_for(event_type, wait=wait)
                    payload_json = encode_payload(payload, limit)
                    status = statuses[event_type]
                    drafts.append(Draft(new_id(), event_type, payload_json, None, now, status, False))
                else:
                    drafts.append(self._draft_item(item, wait=wait))
        except _ITEM_ERRORS as error:
            _name_item(error, len(drafts))
            raise
        return drafts

    def draft_stream(
        self, stream_id: str, items: Iterable[object], expected_version: int | None
    ) -> list[Draft]:
        """All items of append: one after another in one stream, the first at the expected version."""
        checked_id = check_id_field("stream_id", stream_id)
        if checked_id is None:
            raise InvalidEventFieldError("stream_id", stream_id, "a string of 1 to 255 printable characters")
        expected = check_number_field("expected_version", expected_version, at_least=0)
        drafts = self.draft_many(items, wait=False)
        for index, draft in enumerate(drafts):
            if draft.expected_version is not None or draft.stream_id not in (None, checked_id):
                error = InvalidEventFieldError(
                    "stream_id",
                    draft.stream_id,
                    f"events of the stream {checked_id!r} without a version of their own",
                )
                _name_item(error, index)
                raise error
        return [
            msgspec.structs.replace(
                draft, stream_id=checked_id, expected_version=expected if index == 0 else None
            )
            for index, draft in enumerate(drafts)
        ]

    def _draft_item(self, item: object, *, wait: bool) -> Draft:
        if isinstance(item, NewEvent):
            return self.draft_new(item, wait=wait)
        if isinstance(item, tuple) and 1 <= len(item) <= 3:
            event_type, payload, metadata = (*item, None, None)[:3]
            return self.draft(event_type, payload, metadata, None, wait=wait)
        raise InvalidPayloadError(f"is of type {type(item).__qualname__}", _EXPECTED_ITEM, "the item")

    def _check_type(self, event_type: object) -> str:
        checked = check_event_type(event_type)
        if len(self._known_types) >= _MOST_KNOWN_TYPES:
            self._known_types.clear()
        self._known_types.add(checked)
        return checked


def _name_item(error: PostbusError, index: int) -> None:
    """Let an error say which of several items it is about."""
    place = f"events[{index}]: "
    error.args = (f"{place}{error}",)
    if isinstance(error, InvalidPayloadError):
        error.path = f"{place}{error.path}"
