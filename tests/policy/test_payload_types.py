"""What a handler asks for with its annotation, and what it gets."""

import dataclasses
import enum
import functools
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NewType, Optional, Protocol, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from postbus.errors import InvalidHandlerError, PayloadTypeError
from postbus.events import DeadLetter, Event
from postbus.policy.payload_types import PayloadType, payload_type_of
from postbus.policy.payloads import encode_payload

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Name(str):
    __slots__ = ()


NOBODY = Name("nobody")


@dataclasses.dataclass(frozen=True)
class Line:
    article: uuid.UUID
    price: Decimal
    colour: Colour


@dataclasses.dataclass
class Placed:
    order: int
    placed_at: datetime
    lines: list[Line]
    sizes: dict[str, Size] = dataclasses.field(default_factory=dict)
    name: Name = NOBODY
    pause: timedelta | None = None
    tags: frozenset[str] = frozenset()


class Paid(msgspec.Struct, rename="camel"):
    order_id: uuid.UUID
    amount: Decimal
    paid_on: date
    at: time
    lines: tuple[Line, ...] = ()
    weight: float = 0.5
    receipt: bytes = b""


class Address(pydantic.BaseModel):
    street_name: str = pydantic.Field(alias="streetName")
    since: date


class Shipped(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    order: uuid.UUID
    shipped_at: datetime
    cost: Decimal
    colours: list[Colour]
    address: Address
    by_size: dict[int, str] = {}


@dataclasses.dataclass
class Parcel:
    content: Shipped
    earlier: list[Address]
    next: Address | None = None


class Options(TypedDict):
    gift: bool


class HasType(Protocol):
    @property
    def type(self) -> str: ...


PLACED = Placed(42, NOON, [Line(uuid.UUID(int=7), Decimal("1.50"), Colour.RED)])
OrderNumber = NewType("OrderNumber", int)
PlacedEvent = Event[Placed]


def store(payload: object, **fields: Any) -> Event:
    """An event as a store gives it back."""
    stored = msgspec.json.decode(encode_payload(payload, 10**6))
    return Event(id="1", type="order.placed", payload=stored, created_at=NOON, **fields)


def annotate(annotation: object) -> Callable[..., object]:
    """A handler whose parameter is annotated with this."""

    def handler(event: object) -> None: ...

    handler.__annotations__["event"] = annotation
    return handler


@pytest.mark.parametrize(
    "annotation",
    [
        Event,
        "Event",
        Event[Any],
        Event[object],
        Event[T],  # type: ignore[valid-type]
        Event | None,
        DeadLetter,
        Any,
        object,
        T,
        None,
        msgspec.Struct,
        HasType,
        Colour,
        Event[Placed] | Event[Paid],
        Event | Placed,
        "Unknown",
        "Event[Unknown]",
        "no annotation at all",
        "1 / 0",
        17,
    ],
    ids=str,
)
def test_the_event_as_it_is(annotation: object) -> None:
    """A plain Event, anything that an Event is, and whatever can't be resolved or understood."""
    assert payload_type_of(annotate(annotation)) is None


@pytest.mark.parametrize(
    ("annotation", "payload_type"),
    [
        (Event[Placed], Placed),
        ("Event[Placed]", Placed),
        (Event["Placed"], Placed),
        (PlacedEvent, Placed),
        (TypeAliasType("Alias", Event[Placed]), Placed),
        (Event[Placed] | None, Placed),
        (Annotated[Event[Placed], "note"], Placed),
        (Annotated[Event[Placed], "note"] | None, Placed),
        (Event[Placed | None], Placed | None),
        (Event[dict[str, int]], dict[str, int]),
        (Event[list[Shipped]], list[Shipped]),
        (Event[Colour], Colour),
        (Event[str], str),
    ],
    ids=str,
)
def test_the_event_with_its_payload_converted(annotation: object, payload_type: object) -> None:
    """Event[T] in any spelling."""
    assert payload_type_of(annotate(annotation)) == PayloadType(payload_type, wants_event=True)


@pytest.mark.parametrize(
    ("annotation", "payload_type"),
    [
        (Placed, Placed),
        ("Placed", Placed),
        (Paid, Paid),
        (Shipped, Shipped),
        (Placed | None, Placed | None),
        (Optional[Shipped], Shipped | None),  # noqa: UP045
        (Annotated[Placed, "note"], Annotated[Placed, "note"]),
        (Annotated[Placed, "note"] | None, Annotated[Placed, "note"] | None),
        (Options, Options),
        (dict, dict),
        (dict[str, Any], dict[str, Any]),
        (Mapping[str, int], Mapping[str, int]),
        (list[Placed], list[Placed]),
        (OrderNumber, OrderNumber),
        (int, int),
    ],
    ids=str,
)
def test_the_payload_itself(annotation: object, payload_type: object) -> None:
    """A dataclass, a Struct, a pydantic model, a type of JSON."""
    assert payload_type_of(annotate(annotation)) == PayloadType(payload_type, wants_event=False)


WANTED = PayloadType(Placed, wants_event=False)


class Service:
    def on_placed(self, placed: Placed) -> None: ...

    @classmethod
    def on_class(cls, placed: Placed) -> None: ...

    @staticmethod
    def on_static(placed: Placed) -> None: ...

    async def __call__(self, placed: "Placed") -> None: ...


def with_settings(settings: Service, placed: "Placed", *, retries: int = 3) -> None: ...


def with_settings_first(placed: "Placed", settings: "Service | None" = None) -> None: ...


def with_unknown_neighbours(placed: "Placed", other: "Unknown" = None) -> "Unknown": ...


def with_transaction(placed: Placed, transaction: object) -> None: ...


def with_many(*placed: Placed) -> None: ...


@functools.wraps(with_transaction)
def wrapping(*args: object) -> None: ...


class Keeper:
    def __init__(self, placed: "Placed") -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        Service().on_placed,
        Service.on_class,
        Service.on_static,
        Service(),
        Keeper,
        with_unknown_neighbours,
        with_transaction,
        with_many,
        wrapping,
        functools.partial(with_settings, Service()),
        functools.partial(functools.partial(with_settings, Service()), retries=1),
        functools.partial(Service()),
        functools.partial(Service().on_placed),
    ],
)
def test_any_callable_says_what_it_wants(handler: Callable[..., object]) -> None:
    """Methods, callable objects, partials, wrappers: the first parameter that is left counts."""
    assert payload_type_of(handler) == WANTED


# Another module, as one looks like that imports Event for type checkers only.
ELSEWHERE: dict[str, Any] = {"functools": functools}
exec(
    """
Numbers = dict[str, int]

def handler(event: "Event[Numbers]", transaction: object = None) -> None: ...

class Service:
    def handler(self, event: "Event[Numbers]") -> None: ...
    def __call__(self, event: "Event[Numbers]") -> None: ...

def decorate(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper
""",
    ELSEWHERE,
)


@pytest.mark.parametrize(
    "handler",
    [
        ELSEWHERE["handler"],
        ELSEWHERE["Service"]().handler,
        ELSEWHERE["Service"](),
        functools.wraps(ELSEWHERE["handler"])(lambda *args: None),
        functools.partial(ELSEWHERE["handler"], transaction=None),
    ],
)
def test_an_annotation_is_read_where_it_was_written(handler: Callable[..., object]) -> None:
    """By the names of the handler's own module, in which Event need not be one."""
    assert payload_type_of(handler) == PayloadType(dict[str, int], wants_event=True)


def test_a_decorator_of_another_module_changes_nothing() -> None:
    """What counts is the function that it was put on."""
    assert payload_type_of(ELSEWHERE["decorate"](with_settings_first)) == WANTED


@pytest.mark.parametrize(
    "handler",
    [
        lambda event: None,
        [].append,
        print,
        dict,
        lambda: None,
        lambda *, placed: None,
        functools.partial(with_settings, Service(), placed=PLACED),
    ],
)
def test_a_callable_that_says_nothing_gets_the_event(handler: Callable[..., object]) -> None:
    """Built-ins and lambdas among them."""
    assert payload_type_of(handler) is None


def test_a_type_that_no_json_fits_is_refused_at_once() -> None:
    """Otherwise every event would become a dead letter."""

    def handler(event: Event[Placed | Line]) -> None: ...

    with pytest.raises(
        InvalidHandlerError, match=r"handler .*handler asks for a .*Placed .*Line, to which no"
    ):
        payload_type_of(handler)


def test_a_type_may_be_completed_after_the_handler() -> None:
    """A class further down in the module is known when the first event comes."""

    @dataclasses.dataclass
    class Outer:
        inner: "DefinedLater"

    payload_type = payload_type_of(annotate(Outer))

    assert payload_type == PayloadType(Outer, wants_event=False)
    with pytest.raises(PayloadTypeError, match="NameError: name 'DefinedLater' is not defined"):
        payload_type.convert(store({"inner": 1}))

    globals()["DefinedLater"] = int
    try:
        assert payload_type.convert(store({"inner": 1})) == Outer(1)
    finally:
        del globals()["DefinedLater"]


if TYPE_CHECKING:
    DefinedLater = int


def test_a_handler_of_the_payload_gets_it_alone() -> None:
    """As its own type."""
    assert PayloadType(Placed, wants_event=False).convert(store(PLACED)) == PLACED


def test_a_handler_of_the_event_gets_all_of_it() -> None:
    """Only the payload is another one; the stored event stays as it is."""
    event = store(PLACED, stream_id="order-42", metadata={"source": "web"})
    converted = PayloadType(Placed, wants_event=True).convert(event)

    assert converted == msgspec.structs.replace(event, payload=PLACED)
    assert type(event.payload) is dict


def test_keys_of_json_are_texts_and_of_types_they_need_not_be() -> None:
    """An object of JSON fits a dict of numbers."""
    assert PayloadType(dict[int, str], wants_event=False).convert(store({"1": "a"})) == {1: "a"}


Positive = Annotated[int, msgspec.Meta(gt=0)]


@pytest.mark.parametrize("annotation", [Positive, Event[Positive]], ids=str)
def test_limits_of_a_type_are_kept(annotation: object) -> None:
    """What msgspec can be told with Annotated counts."""
    payload_type = payload_type_of(annotate(annotation))

    assert payload_type is not None
    with pytest.raises(PayloadTypeError, match="Expected `int` >= 1"):
        payload_type.convert(store(0))


def test_the_payload_of_a_purged_event_is_none() -> None:
    """The fact that it happened is still delivered, whatever type is asked for."""
    purged = store(None, purged_at=NOON, purger_id="gdpr")

    assert PayloadType(Placed, wants_event=False).convert(purged) is None
    assert PayloadType(Shipped, wants_event=True).convert(purged) == purged


def test_a_payload_of_none_fits_only_who_allows_it() -> None:
    """An event that was published without one is not a purged one."""
    assert PayloadType(Placed | None, wants_event=False).convert(store(None)) is None
    with pytest.raises(PayloadTypeError, match="Expected `object`, got `null`"):
        PayloadType(Placed, wants_event=False).convert(store(None))


class Picky(msgspec.Struct):
    order: int

    def __post_init__(self) -> None:
        if self.order < 0:
            raise KeyError(self.order)
        if self.order == 0:
            raise ValueError("orders begin at 1")


class Hopeless:
    """Nothing that JSON could become."""


@dataclasses.dataclass
class Odd:
    thing: Hopeless


@pytest.mark.parametrize(
    ("payload_type", "payload", "reason"),
    [
        (Placed, {}, "missing required field `order`"),
        (Placed, [1], "Expected `object`, got `array`"),
        (list[int], [1, "2"], r"Expected `int`, got `str` - at `\$\[1\]`"),
        (int, "42", "Expected `int`, got `str`"),
        (Address, {"since": "2026-01-01"}, "1 validation error for Address .*Field required"),
        (list[Address], [{}], r"2 validation errors for Address .* at `\$\[0\]`"),
        (Picky, {"order": 0}, "orders begin at 1"),
        (Picky, {"order": -1}, "KeyError: -1"),
        (Odd, {"thing": 1}, "Hopeless is no type that can be made from JSON"),
        (dict[str, Name], {"a": 1}, "Name is no type that can be made from JSON"),
    ],
    ids=str,
)
def test_a_payload_that_does_not_fit_is_named_with_the_reason(
    payload_type: object, payload: object, reason: str
) -> None:
    """On one line, whoever found the fault."""
    event = store(payload)
    with pytest.raises(PayloadTypeError, match=reason) as caught:
        PayloadType(payload_type, wants_event=True).convert(event)

    assert caught.value.event_type == "order.placed"
    assert caught.value.expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_reason_is_not_as_long_as_the_payload() -> None:
    """It ends up in every log and dead letter."""

    class Loud(pydantic.BaseModel):
        order: int

        @pydantic.field_validator("order", mode="before")
        @classmethod
        def refuse(cls, value: object) -> object:
            raise ValueError(f"no {value} " * 10_000)

    with pytest.raises(PayloadTypeError) as caught:
        PayloadType(Loud, wants_event=False).convert(store({"order": 1}))

    assert len(str(caught.value)) < 1000


class OldModel:
    """A model that knows the oldest of pydantic's methods only."""

    def __init__(self, value: object) -> None:
        self.value = value

    @classmethod
    def model_validate(cls, value: object) -> "OldModel":
        return cls(value)


class OlderModel(OldModel):
    """A model that does not know fields by their names yet."""

    @classmethod
    def model_validate_json(cls, text: bytes) -> "OlderModel":
        return cls(text)


def test_models_are_found_by_what_they_can_do() -> None:
    """Any version of pydantic, and whatever speaks like it."""
    for kind, value in ((OldModel, {"a": 1}), (OlderModel, b'{"a":1}')):
        payload_type = payload_type_of(annotate(kind))

        assert payload_type == PayloadType(kind, wants_event=False)
        model = payload_type.convert(store({"a": 1}))
        assert isinstance(model, kind)
        assert model.value == value


def test_what_others_publish_by_alias_is_taken_too() -> None:
    """A field is known by its name and by its alias."""
    for key in ("street_name", "streetName"):
        payload = {key: "Main", "since": "2026-01-01"}
        address = PayloadType(Address, wants_event=False).convert(store(payload))

        assert address == Address(streetName="Main", since=date(2026, 1, 1))


# Whole minutes: that is all that the text of a moment can say.
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.one_of(st.none(), offsets))
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
uuids = st.uuids()
colours = st.sampled_from(Colour)
lines = st.builds(Line, uuids, decimals, colours)
placed = st.builds(
    Placed,
    st.integers(),
    moments,
    st.lists(lines, max_size=3),
    st.dictionaries(texts, st.sampled_from(Size), max_size=3),
    texts.map(Name),
    st.none() | st.timedeltas(),
    st.frozensets(texts, max_size=3),
)
paid = st.builds(
    Paid,
    uuids,
    decimals,
    st.dates(),
    st.times(),
    st.lists(lines, max_size=3).map(tuple),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=8),
)
addresses = st.builds(Address, streetName=texts, since=st.dates())
shipped = st.builds(
    Shipped,
    order=uuids,
    shipped_at=moments,
    cost=decimals,
    colours=st.lists(colours, max_size=3),
    address=addresses,
    by_size=st.dictionaries(st.integers(-(2**60), 2**60), texts, max_size=3),
)
parcels = st.builds(Parcel, shipped, st.lists(addresses, max_size=2), st.none() | addresses)


@given(placed | paid | shipped | parcels)
@example(PLACED)
def test_what_was_published_comes_back_equal(model: object) -> None:
    """Through JSON and back: dataclasses, Structs and models, with all they hold."""
    converted = PayloadType(type(model), wants_event=False).convert(store(model))

    assert converted == model
    assert type(converted) is type(model)


class Summary(TypedDict):
    orders: list[Placed]
    last: Paid | None


@given(st.lists(placed, max_size=2), st.none() | paid)
def test_models_inside_of_json_come_back_equal(orders: list[Placed], last: Paid | None) -> None:
    """Asked for as a dict of them."""
    event = store({"orders": orders, "last": last})

    assert PayloadType(Summary, wants_event=False).convert(event) == {"orders": orders, "last": last}


@pytest.mark.parametrize("wanted", [dict, dict[str, Any], dict[str, object], dict[str, int]])
def test_a_handler_may_change_the_object_it_gets(wanted: Any) -> None:
    """The next attempt, and other handlers of the event, get it as it was published."""
    event = Event(id="1", type="order.placed", payload={"total": 1}, created_at=NOON)
    own: Any = PayloadType(wanted, wants_event=False).convert(event)
    own["total"] = 2
    changed: Any = PayloadType(wanted, wants_event=True).convert(event)
    changed.payload["total"] = 3

    assert event.payload == {"total": 1}
