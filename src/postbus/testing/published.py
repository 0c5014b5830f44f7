"""Which events were published? Assertions that show what was published instead."""

import difflib
import heapq
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import overload

from postbus.bus import EventBus
from postbus.config import check_whole_number
from postbus.events import Event
from postbus.policy.patterns import check_pattern, matches
from postbus.ports import Store
from postbus.testing.matching import find_difference, show

_PAGE_SIZE = 500
_MOST_SHOWN = 5
_PARTS = ("payload", "metadata", "stream_id")


async def published(where: EventBus | Store, pattern: str = "*") -> list[Event]:
    """The stored events whose type matches, in the order of the log.

    >>> import asyncio
    >>> async def main() -> list[str]:
    ...     async with EventBus("memory:") as bus:
    ...         await bus.publish("order.placed", {"order": 42})
    ...         return [event.type for event in await published(bus, "order.*")]
    >>> asyncio.run(main())
    ['order.placed']
    """
    checked = check_pattern(pattern)
    return [event async for event in _read(where) if matches(checked, event.type)]


@overload
async def assert_published(
    where: EventBus | Store,
    pattern: str,
    payload: object = ...,
    *,
    count: None = None,
    metadata: Mapping[str, str] | EllipsisType | None = ...,
    stream_id: str | EllipsisType | None = ...,
) -> Event: ...


@overload
async def assert_published(
    where: EventBus | Store,
    pattern: str,
    payload: object = ...,
    *,
    count: int,
    metadata: Mapping[str, str] | EllipsisType | None = ...,
    stream_id: str | EllipsisType | None = ...,
) -> list[Event]: ...


async def assert_published(
    where: EventBus | Store,
    pattern: str,
    payload: object = ...,
    *,
    count: int | None = None,
    metadata: Mapping[str, str] | EllipsisType | None = ...,
    stream_id: str | EllipsisType | None = ...,
) -> Event | list[Event]:
    """Fail unless such an event is stored; the first one, or all of them where a *count* is given.

    What is left out, or given as ``...``, may be anything. Dicts of *payload* and *metadata* may have
    more keys than expected. With a *count* there must be just as many. Events that durable subscribers
    publish come in their own time: await bus.idle() first.
    """
    __tracebackhide__ = True
    if count is not None:
        check_whole_number("count", count, at_least=0)
    expected = _Expected(check_pattern(pattern), payload, metadata, stream_id)
    found = [event async for event in _read(where) if not expected.differences(event)]
    if count is None and found:
        return found[0]
    if count is not None and len(found) == count:
        return found
    wanted = "at least 1" if count is None else str(count)
    message = f"expected {wanted} published events that match {expected}, found {len(found)}"
    raise AssertionError(message + (_list(found) if found else await _list_nearest(where, expected)))


async def assert_not_published(
    where: EventBus | Store,
    pattern: str,
    payload: object = ...,
    *,
    metadata: Mapping[str, str] | EllipsisType | None = ...,
    stream_id: str | EllipsisType | None = ...,
) -> None:
    """Fail if such an event is stored; what is given is read as by assert_published."""
    __tracebackhide__ = True
    expected = _Expected(check_pattern(pattern), payload, metadata, stream_id)
    found = [event async for event in _read(where) if not expected.differences(event)]
    if found:
        raise AssertionError(
            f"expected no published event that matches {expected}, found {len(found)}" + _list(found)
        )


@dataclass(frozen=True, slots=True)
class _Expected:
    """What an event should be like; ``...`` stands for anything."""

    pattern: str
    payload: object
    metadata: object
    stream_id: object

    def differences(self, event: Event) -> list[str]:
        found = [] if matches(self.pattern, event.type) else [f"the type does not match {self.pattern}"]
        for name in _PARTS:
            value = getattr(self, name)
            if value is not ... and (difference := find_difference(value, getattr(event, name), name)):
                found.append(difference)
        return found

    def distance(self, event: Event) -> tuple[bool, int, float, int]:
        """How far an event is from this, less being nearer; of equals the later is nearer."""
        likeness = difflib.SequenceMatcher(None, self.pattern, event.type).ratio()
        differences = len(self.differences(event))
        return not matches(self.pattern, event.type), differences, -likeness, -(event.global_sequence or 0)

    def __str__(self) -> str:
        parts = [(name, getattr(self, name)) for name in _PARTS]
        given = [f"{name} {show(value)}" for name, value in parts if value is not ...]
        return self.pattern + (f" with {', '.join(given)}" if given else "")


async def _read(where: EventBus | Store) -> AsyncIterator[Event]:
    store = where.store if isinstance(where, EventBus) else where
    after = 0
    while page := await store.read_all(after, _PAGE_SIZE):
        for event in page:
            yield event
        after = page[-1].global_sequence or after


def _list(events: list[Event]) -> str:
    lines = [f"\n  {_describe(event)}" for event in events[:_MOST_SHOWN]]
    return ":" + "".join(lines) + _and_more(len(events))


async def _list_nearest(where: EventBus | Store, expected: _Expected) -> str:
    # Only the nearest are kept: the log may be long.
    nearest: list[tuple[tuple[bool, int, float, int], Event]] = []
    total = 0
    async for event in _read(where):
        total += 1
        nearest = heapq.nsmallest(_MOST_SHOWN, [*nearest, (expected.distance(event), event)], _by_distance)
    if not total:
        return "; nothing was published"
    lines = [f"\n  {_describe(event)}: {'; '.join(expected.differences(event))}" for _, event in nearest]
    return f"; published were {total}, the nearest first:" + "".join(lines) + _and_more(total)


def _by_distance(entry: tuple[tuple[bool, int, float, int], Event]) -> tuple[bool, int, float, int]:
    return entry[0]


def _describe(event: Event) -> str:
    extra = "" if event.metadata is None else f" metadata {show(event.metadata)}"
    stream = "" if event.stream_id is None else f" of stream {event.stream_id!r}"
    return f"#{event.global_sequence} {event.type} {show(event.payload)}{extra}{stream}"


def _and_more(total: int) -> str:
    return f"\n  … and {total - _MOST_SHOWN} more" if total > _MOST_SHOWN else ""
