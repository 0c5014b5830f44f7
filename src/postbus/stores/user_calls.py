"""What users call on any store: checks of what they give, and the log asked as often as it takes."""

from collections.abc import Sequence
from typing import Any

from postbus.config import DEFAULT_MAX_PAYLOAD_BYTES
from postbus.drafting import Drafts
from postbus.errors import InvalidEventFieldError, InvalidPageError
from postbus.events import Draft, Event, EventStatus, GlobalSequence, LogPosition
from postbus.ids import new_event_id
from postbus.ports import Clock, EventLog


def make_drafts(clock: Clock) -> Drafts:
    """For append: the store itself knows whether there are subscriptions that wait for the events."""
    return Drafts(_no_status, clock, new_event_id, DEFAULT_MAX_PAYLOAD_BYTES)


async def append(log: EventLog, drafts: Sequence[Draft], connection: Any) -> list[Event]:
    """Store drafts in a transaction of their own, or in that of the caller's connection."""
    if connection is None:
        return await log.append(drafts)
    return await log.append_within(connection, drafts)


async def read_stream(
    log: EventLog, stream_id: str, from_version: int, to_version: int | None
) -> list[Event]:
    """The events of a stream, both bounds included. InvalidPageError."""
    _check_number("from_version", from_version, at_least=1)
    if to_version is not None:
        _check_number("to_version", to_version, at_least=0)
    return await log.read_stream(stream_id, from_version, to_version)


async def read_all(log: EventLog, after: int, limit: int) -> list[Event]:
    """As many events as there are, up to *limit*, however the log pages them. InvalidPageError."""
    _check_number("after", after, at_least=0)
    _check_number("limit", limit, at_least=0)
    events: list[Event] = []
    position = LogPosition(GlobalSequence(after))
    while len(events) < limit:
        page = await log.read(position, limit - len(events), None)
        if page.up_to == position.head:
            break
        events += page.events
        position = LogPosition(page.up_to)
    return events


async def purge(log: EventLog, event_id: str, purger_id: str) -> None:
    """Take the payload of an event away. EventNotFoundError, InvalidEventFieldError."""
    if not isinstance(purger_id, str) or not purger_id:
        raise InvalidEventFieldError("purger_id", purger_id, "a string that says who takes it away")
    await log.purge(event_id, purger_id)


def _no_status(event_type: str, *, wait: bool) -> EventStatus | None:  # noqa: ARG001
    return None


def _check_number(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidPageError(name, value, f"a whole number of {at_least} or more")
