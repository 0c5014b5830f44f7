"""Bad input: a clear error of ours, nothing half-stored, and a bus that goes on."""

import math
import pickle
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from postbus import (
    DLQInspector,
    Event,
    EventBus,
    InvalidConfigError,
    InvalidEventIdError,
    InvalidEventTypeError,
    InvalidHandlerError,
    InvalidMetadataError,
    InvalidPageError,
    InvalidPatternError,
    InvalidPayloadError,
    InvalidSubscriberIdError,
    InvalidTargetError,
    NewEvent,
    PostbusError,
    RetryPolicy,
    SQLiteStore,
    SubscriptionNotFoundError,
)
from postbus.clock import SystemClock
from tests.delivery.steps import FlakyHandler, MakeBus, query


def shown(value: object) -> str:
    """The name of a case, the same in every process."""
    return "an object" if type(value) is object else repr(value)[:40]


def nested(depth: int) -> object:
    """Lists in lists."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


_circle: dict[str, object] = {}
_circle["self"] = _circle

PAYLOADS: dict[str, object] = {
    "an object": object(),
    "a set": {1, 2},
    "bytes": b"bytes",
    "a bytearray": bytearray(b"bytes"),
    "a datetime": datetime(2026, 1, 1),
    "a Decimal": Decimal("1.5"),
    "a complex number": 1j,
    "a function": len,
    "a class": int,
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "a lone surrogate": "\ud800",
    "a NUL": "a\0b",
    "a key that is no text": {1: "a"},
    "a key with a lone surrogate": {"\udfff": 1},
    "a key with a NUL": {"\0": 1},
    "a hundred and one levels": nested(101),
    "itself": _circle,
}

EVENT_TYPES: dict[str, object] = {
    "empty": "",
    "only a dot": ".",
    "a dot in front": ".order",
    "a dot behind": "order.",
    "two dots": "order..placed",
    "a space": "order placed",
    "only spaces": "   ",
    "a newline": "order\nplaced",
    "a NUL": "order\0placed",
    "a lone surrogate": "order\ud800",
    "a star": "order.*",
    "too long": "a" * 256,
    "None": None,
    "a number": 42,
    "bytes": b"order.placed",
    "a list": ["order.placed"],
}


@pytest.fixture
async def bus(database: Path, make_bus: MakeBus) -> AsyncIterator[EventBus]:
    """A running bus with a handler; whatever it refuses leaves no trace, and the bus goes on."""
    bus, handler = make_bus(max_payload_bytes=1000), FlakyHandler()
    bus.subscribe(handler)
    await bus.start()
    yield bus

    assert query(database, "SELECT * FROM events") == []
    await bus.publish("order.placed", "good")
    assert handler.payloads == ["good"]


class TestPublish:
    @pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
    async def test_a_payload_that_is_not_json(self, bus: EventBus, payload: object) -> None:
        """At the top and deep inside; the error says where."""
        with pytest.raises(InvalidPayloadError, match=r"payload.*nothing was stored"):
            await bus.publish("order.placed", payload)
        with pytest.raises(InvalidPayloadError, match=r'payload\["items"\]'):
            await bus.publish("order.placed", {"items": [1, payload]})

    async def test_a_payload_that_is_too_large(self, bus: EventBus) -> None:
        """By one byte: 998 characters and two quotes are the thousand that this bus takes."""
        for too_large in ("x" * 999, ["é" * 499, ""], {"k" * 1000: 1}, list(range(500))):
            with pytest.raises(InvalidPayloadError, match="1000 bytes"):
                await bus.publish("order.placed", too_large)

    async def test_the_largest_payload_is_taken(self, make_bus: MakeBus) -> None:
        """Exactly as many bytes as are allowed."""
        bus = make_bus(max_payload_bytes=1000)
        event = await bus.store.get(await bus.publish("order.placed", "x" * 998))

        assert event.payload == "x" * 998

    @pytest.mark.parametrize("event_type", EVENT_TYPES.values(), ids=EVENT_TYPES)
    async def test_an_event_type_that_is_no_dotted_name(self, bus: EventBus, event_type: Any) -> None:
        """Empty, absurd, or no text at all."""
        with pytest.raises(InvalidEventTypeError, match=r"order\.placed"):
            await bus.publish(event_type, 1)

    @pytest.mark.parametrize(
        "metadata",
        [[], "text", {"a": 1}, {"a": None}, {1: "a"}, {"a": "\ud800"}, {"a\0": "b"}, {"a": "x" * 70_000}],
        ids=shown,
    )
    async def test_metadata_that_is_not_strings_by_strings(self, bus: EventBus, metadata: Any) -> None:
        """Nothing is converted behind anybody's back."""
        with pytest.raises(InvalidMetadataError, match="nothing was stored"):
            await bus.publish("order.placed", 1, metadata)

    @pytest.mark.parametrize("event_id", ["", "a\nb", "\0", "x" * 256, 42, b"id", "\ud800"], ids=shown)
    async def test_an_id_that_is_no_usable_text(self, bus: EventBus, event_id: Any) -> None:
        """Empty, unprintable, too long, or no text at all."""
        with pytest.raises(InvalidEventIdError, match="nothing was stored"):
            await bus.publish("order.placed", event_id=event_id)

    async def test_what_was_refused_is_told_before_the_handlers_run(self, make_bus: MakeBus) -> None:
        """Nobody sees a bad event."""
        bus, handler = make_bus(), FlakyHandler()
        bus.subscribe(handler)
        with pytest.raises(InvalidPayloadError):
            await bus.publish("order.placed", {1})

        assert handler.events == []


class TestPublishMany:
    @pytest.mark.parametrize(
        "item",
        ["order.placed", (), ("order.placed", 1, None, 4), {"type": "order.placed"}, None, 42],
        ids=shown,
    )
    async def test_an_item_that_is_neither_tuple_nor_new_event(self, bus: EventBus, item: Any) -> None:
        """The error says what it may be."""
        with pytest.raises(PostbusError, match="NewEvent"):
            await bus.publish_many([("order.placed", 1), item])

    @pytest.mark.parametrize(
        "events", [None, 5, "abc", "", b"abc", {"a": 1}, {}, NewEvent("order.placed"), object()], ids=shown
    )
    async def test_what_is_no_list_of_events(self, bus: EventBus, events: Any) -> None:
        """An empty text or dict is none either."""
        with pytest.raises(InvalidPayloadError, match=r"events is of type .*NewEvent; nothing was stored"):
            await bus.publish_many(events)

    @pytest.mark.parametrize(
        ("item", "error"),
        [
            (("order..placed", 1), InvalidEventTypeError),
            (("order.placed", {1}), InvalidPayloadError),
            (("order.placed", 1, {"a": 1}), InvalidMetadataError),
            (NewEvent("order.placed", event_id=""), InvalidEventIdError),
        ],
        ids=shown,
    )
    async def test_one_bad_item_among_good_ones(
        self, bus: EventBus, item: Any, error: type[PostbusError]
    ) -> None:
        """As publish would refuse it; none of the good ones is stored."""
        with pytest.raises(error):
            await bus.publish_many([("order.placed", 1), item, ("order.placed", 2)])

    @pytest.mark.parametrize(
        ("item", "words"),
        [
            (("order..placed", 1), "event type 'order..placed' has an empty segment"),
            (("order.placed", {1}), "payload is of type set"),
            (("order.placed", {"items": [{1}]}), 'payload["items"][0] is of type set'),
            (("order.placed", {"a\0": 1}), r'the key "a\x00" of payload contains a NUL character'),
            (("order.placed", 1, {"a": 1}), 'metadata["a"] is of type int'),
            (NewEvent("order.placed", event_id=""), "event id '' is empty"),
            (NewEvent("order.placed", stream_id=""), "stream_id is ''"),
            (None, "the item is of type NoneType"),
        ],
        ids=shown,
    )
    async def test_the_error_says_which_item_is_bad(self, bus: EventBus, item: Any, words: str) -> None:
        """Among hundreds, of a list as of a generator; in the words that publish has for it."""
        events = [("order.placed", number) for number in range(500)]
        for given in ([*events, item, *events], (each for each in (*events, item))):
            with pytest.raises(PostbusError, match=rf"^{re.escape(f'events[500]: {words}')}.*; expected"):
                await bus.publish_many(given)

    async def test_the_path_of_a_bad_payload_begins_with_its_item(self, bus: EventBus) -> None:
        """For who reads the error by its attributes; also when it was sent to another process."""
        with pytest.raises(InvalidPayloadError) as refused:
            await bus.publish_many([("order.placed", 1), ("order.placed", {"items": {1}})])
        copied = pickle.loads(pickle.dumps(refused.value))

        for error in (refused.value, copied):
            assert error.path == 'events[1]: payload["items"]'
            assert str(error).startswith(f"{error.path} {error.found}")


class TestSubscribe:
    @pytest.mark.parametrize(
        "pattern", ["", ".", "order.", "order..*", "order.pla*", "**", "a b", "x" * 256, 42], ids=shown
    )
    async def test_a_pattern_that_is_no_dotted_name_with_stars(self, bus: EventBus, pattern: Any) -> None:
        """A pattern that could match nothing is a mistake."""
        with pytest.raises(InvalidPatternError, match=r'"order\.\*"'):
            bus.subscribe(pattern, FlakyHandler())

    @pytest.mark.parametrize("handler", [42, "handler", object()], ids=["a number", "a text", "an object"])
    async def test_a_handler_that_cannot_be_called(self, bus: EventBus, handler: Any) -> None:
        """Found when it is subscribed, not when the first event comes."""
        with pytest.raises(InvalidHandlerError):
            bus.subscribe("order.*", handler)

    async def test_a_pattern_of_none(self, bus: EventBus) -> None:
        """Not every event: a setting that is not there would silently have been that."""
        with pytest.raises(InvalidPatternError, match="None is of type NoneType"):
            bus.subscribe(None, FlakyHandler())  # type: ignore[arg-type]
        with pytest.raises(InvalidPatternError, match="None is of type NoneType"):
            bus.subscribe(None, FlakyHandler(), id="mail")  # type: ignore[arg-type]

    async def test_a_handler_that_is_missing(self, bus: EventBus) -> None:
        """subscribe("order.*") alone."""
        with pytest.raises(InvalidHandlerError, match="no handler"):
            bus.subscribe("order.*")

    async def test_a_handler_with_the_wrong_number_of_parameters(self, bus: EventBus) -> None:
        """None, or three that have to be given; a second one is the transaction of a durable subscriber."""

        async def none() -> None: ...

        async def two(event: Event, other: object) -> None: ...

        async def three(event: Event, other: object, another: object) -> None: ...

        for handler, words in ((none, "one event"), (two, "give it an id"), (three, "one event")):
            with pytest.raises(InvalidHandlerError, match=words):
                bus.subscribe("order.*", handler)  # type: ignore[arg-type]

    async def test_a_handler_with_further_parameters_that_have_defaults_is_taken(
        self, make_bus: MakeBus
    ) -> None:
        """It can be called with one event."""
        bus = make_bus()
        seen: list[int] = []

        async def handler(event: Event, factor: int = 2, *rest: object, **options: object) -> None:
            seen.append(event.payload * factor)

        bus.subscribe("order.*", handler)
        await bus.publish("order.placed", 21)

        assert seen == [42]

    @pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "5", True], ids=shown)
    async def test_a_timeout_that_is_no_positive_number(self, bus: EventBus, timeout: Any) -> None:
        """Zero included."""
        with pytest.raises(InvalidConfigError, match="timeout"):
            bus.subscribe("order.*", FlakyHandler(), timeout=timeout)

    @pytest.mark.parametrize(
        "retry",
        [
            {"max_retries": -1},
            {"max_retries": 1.5},
            {"max_retries": True},
            {"base_delay": -1.0},
            {"base_delay": math.nan},
            {"max_delay": math.inf},
            {"backoff_multiplier": 0.5},
            {"jitter": 1.5},
            {"jitter": -0.1},
            {"maxRetries": 3},
            {"base_delay": "1"},
            3,
            "often",
        ],
        ids=shown,
    )
    async def test_a_retry_override_out_of_range(self, bus: EventBus, retry: Any) -> None:
        """Or with a field that there is not."""
        with pytest.raises(InvalidConfigError):
            bus.subscribe("order.*", FlakyHandler(), retry=retry)


class TestMakingABus:
    @pytest.mark.parametrize(
        "target",
        [
            "",
            ":memory:",
            "sqlite://",
            "sqlite:///",
            "sqlite://host/file",
            "sqlite:///a\0b",
            "mysql://host/db",
            "sqlite:events.db",
            "sqlite:/var/lib/events.db",
            "SQLite:events.db",
            "postgres:app",
            "postgresql:app",
            "postgresql:/localhost/app",
            "PostgreSQL://localhost/app",
            "postgresql+asyncpg:app",
            "memory:app",
            "a\0b",
            "\ud800",
            b"events.db",
            Path("a\0b"),
            42,
            None,
        ],
        ids=shown,
    )
    def test_a_target_that_names_nothing(self, target: Any) -> None:
        """The error says what a target may be."""
        with pytest.raises(InvalidTargetError, match=r"events\.db"):
            EventBus(target)

    @pytest.mark.parametrize(
        "target", ["sqlite", "postgres", "memory", "app:events.db", r"C:\events.db", "./sqlite:events.db"]
    )
    def test_a_path_that_looks_no_more_than_a_little_like_a_url(self, target: str) -> None:
        """It is a path."""
        store = EventBus(target).store

        assert isinstance(store, SQLiteStore)
        assert store.path.name == Path(target).name

    @pytest.mark.parametrize("target", [":memory:", "sqlite:///:memory:", Path(":memory:")], ids=shown)
    def test_what_sqlite_calls_memory(self, target: Any) -> None:
        """Not a file of that name; the error says what to use."""
        with pytest.raises(InvalidTargetError, match='use "memory:" for tests'):
            EventBus(target)
        with pytest.raises(InvalidTargetError, match='use "memory:" for tests'):
            SQLiteStore(":memory:")

    @pytest.mark.parametrize("path", [None, 42, b"events.db", "a\0b", "\ud800", object()], ids=shown)
    def test_a_store_on_what_is_no_path(self, path: Any) -> None:
        """As a bus refuses it."""
        with pytest.raises(InvalidTargetError, match=r"events\.db"):
            SQLiteStore(path)

    @pytest.mark.parametrize("synchronous", [None, 2, b"FULL", "OFF", ""], ids=shown)
    def test_a_store_that_is_less_than_durable(self, database: Path, synchronous: Any) -> None:
        """The error names those that are."""
        with pytest.raises(InvalidConfigError, match="one of FULL, NORMAL, EXTRA"):
            SQLiteStore(database, synchronous=synchronous)

    @pytest.mark.parametrize("id_factory", [None, "uuid4", 7], ids=shown)
    def test_an_id_factory_that_cannot_be_called(self, database: Path, id_factory: Any) -> None:
        """Here already, and not with the first event."""
        with pytest.raises(InvalidConfigError, match="id_factory"):
            EventBus(database, id_factory=id_factory)

    @pytest.mark.parametrize("clock", [0, 3, "", "UTC", time, datetime, SystemClock], ids=shown)
    def test_a_clock_that_is_none(self, database: Path, clock: Any) -> None:
        """The error says what a clock has."""
        with pytest.raises(
            InvalidConfigError, match=r"clock is .*now\(\), monotonic\(\), sleep\(\) and until\(\)"
        ):
            EventBus(database, clock=clock)

    @pytest.mark.parametrize("noise", [None, 3, 0.5, "random"], ids=shown)
    def test_a_noise_that_cannot_be_called(self, database: Path, noise: Any) -> None:
        """Here already, and not with the first retry."""
        with pytest.raises(InvalidConfigError, match="noise"):
            EventBus(database, noise=noise)

    @pytest.mark.parametrize("name", ["handler_timeout", "shutdown_timeout"])
    @pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**400, "5", None], ids=shown)
    def test_a_timeout_that_is_no_positive_number(self, database: Path, name: str, value: Any) -> None:
        """The error names the setting."""
        with pytest.raises(InvalidConfigError, match=name):
            EventBus(database, **{name: value})

    @pytest.mark.parametrize("value", [0, -1, 1.5, "10", None], ids=shown)
    def test_a_largest_payload_that_is_no_positive_number(self, database: Path, value: Any) -> None:
        """The error names the setting."""
        with pytest.raises(InvalidConfigError, match="max_payload_bytes"):
            EventBus(database, max_payload_bytes=value)

    @pytest.mark.parametrize("retry", [{"max_retries": -1}, {"often": 1}, 3, "often"], ids=shown)
    def test_a_retry_policy_that_is_none(self, database: Path, retry: Any) -> None:
        """Not of the right kind, or out of range."""
        with pytest.raises(InvalidConfigError, match="retr"):
            EventBus(database, retry=retry)

    @pytest.mark.parametrize(
        "fields",
        [{"max_retries": -1}, {"base_delay": -0.1}, {"max_delay": math.nan}, {"jitter": 2}],
        ids=shown,
    )
    def test_a_policy_out_of_range(self, fields: Any) -> None:
        """Refused when it is made."""
        with pytest.raises(InvalidConfigError, match=f"RetryPolicy.{next(iter(fields))}"):
            RetryPolicy(**fields)


class TestDeadLetters:
    @pytest.mark.parametrize("kind", ["path", "folder", "bus", "class", "None"])
    async def test_an_inspector_of_what_is_no_store(
        self, database: Path, make_bus: MakeBus, kind: str
    ) -> None:
        """Refused when it is made, with what to pass instead."""
        no_stores: dict[str, Any] = {
            "path": str(database),
            "folder": database.parent,
            "bus": make_bus(),
            "class": SQLiteStore,
            "None": None,
        }
        with pytest.raises(
            InvalidTargetError,
            match=r'; expected a store, such as SQLiteStore\("events\.db"\) or bus\.store$',
        ):
            DLQInspector(no_stores[kind])

    @pytest.fixture
    async def dlq(self, database: Path) -> AsyncIterator[DLQInspector]:
        """An inspector of an empty file."""
        async with SQLiteStore(database) as store:
            yield DLQInspector(store)

    @pytest.mark.parametrize("value", [-1, 1.5, "10", None, True], ids=shown)
    @pytest.mark.parametrize("name", ["limit", "offset"])
    async def test_a_limit_or_offset_that_is_no_whole_number(
        self, dlq: DLQInspector, name: str, value: Any
    ) -> None:
        """Negative ones would be read as "all" by SQLite."""
        with pytest.raises(InvalidPageError, match=name):
            await dlq.list(**{name: value})

    @pytest.mark.parametrize("days", [-1, -0.001, math.nan, math.inf, "7", None, True], ids=shown)
    async def test_an_age_that_is_no_number_of_days(self, dlq: DLQInspector, days: Any) -> None:
        """A purge of the future would be a purge of everything."""
        with pytest.raises(InvalidPageError, match="older_than_days"):
            await dlq.purge(older_than_days=days)

    async def test_an_age_beyond_the_calendar_purges_nothing(self, dlq: DLQInspector) -> None:
        """A million years ago nothing was published."""
        assert await dlq.purge(older_than_days=400_000_000) == 0


class TestUnsubscribe:
    @pytest.mark.parametrize("subscription_id", [None, 7, len, [], {}], ids=shown)
    async def test_what_is_no_id(self, bus: EventBus, subscription_id: Any) -> None:
        """Whoever gives the handler itself hears that it would go on being called."""
        with pytest.raises(InvalidSubscriberIdError, match="is of type"):
            bus.unsubscribe(subscription_id)

    async def test_an_id_that_nobody_has_is_no_harm(self, bus: EventBus) -> None:
        """As if it had been unsubscribed before."""
        for subscription_id in ("", "unknown", "\ud800", "a\0b"):
            bus.unsubscribe(subscription_id)


@pytest.mark.parametrize("subscriber_id", [None, 7, [], {}, "", "unknown", "\ud800", 2**70], ids=shown)
def test_there_is_no_handle_of_a_subscriber_that_is_not_there(make_bus: MakeBus, subscriber_id: Any) -> None:
    """Whether or not it could be there."""
    with pytest.raises(SubscriptionNotFoundError):
        make_bus().subscription(subscriber_id)


class TestHandlersThatWouldNeverRun:
    def test_on_without_a_pattern(self, make_bus: MakeBus) -> None:
        """Not taken for a pattern: the function would silently stay without events."""

        def audit(event: Event) -> None:
            """Never called."""

        with pytest.raises(InvalidPatternError, match="is of type function"):
            make_bus().on(audit)  # type: ignore[arg-type]

    def test_a_generator(self, make_bus: MakeBus) -> None:
        """Calling it runs nothing."""

        def audit(event: Event) -> Iterator[None]:
            yield

        async def audit_later(event: Event) -> AsyncIterator[None]:
            yield

        for handler in (audit, audit_later):
            with pytest.raises(InvalidHandlerError, match="generator"):
                make_bus().subscribe("order.*", handler)

    @pytest.mark.parametrize(
        "target", ["file:events.db", "sqlite:///events.db?mode=ro", "mysql://host/events"]
    )
    def test_a_target_with_more_than_a_path(self, target: str) -> None:
        """What is not understood is not ignored."""
        with pytest.raises(InvalidTargetError):
            EventBus(target)
