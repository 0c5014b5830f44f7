"""Which payloads are JSON, and what is said about those that are not."""

import dataclasses
import enum
import math
import re
import sys
import time
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postbus.errors import InvalidPayloadError
from postbus.policy import payloads
from postbus.policy.payloads import encode_payload

LIMIT = 16 * 1024 * 1024
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class OldColour(str, enum.Enum):  # noqa: UP042
    RED = "red"


class PlainEnum(enum.Enum):
    RED = "red"


class Name(str):
    __slots__ = ()


class Amount(float):
    __slots__ = ()


class Number(int):
    pass


class Basket(list[object]):
    pass


Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    content: object
    label: str = "box"


class Crate(msgspec.Struct):
    content: object


class Parcel(pydantic.BaseModel):
    content: object
    sent_at: datetime = NOON
    weight: float = 1.0


def encode(payload: object) -> bytes:
    """Encode under the usual limit."""
    return encode_payload(payload, LIMIT)


def decode(payload: object) -> object:
    """What a reader gets for a payload."""
    return msgspec.json.decode(encode(payload))


def nest(depth: int, kind: type[object] = list) -> object:
    """A container in a container …, *depth* of them."""
    value: object = None
    for _ in range(depth):
        if kind is list:
            value = [value]
        elif kind is tuple:
            value = (value,)
        else:
            value = {"a": value}
    return value


clean_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
json_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | clean_texts
)
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(clean_texts, inner, max_size=4),
    max_leaves=15,
)


@given(json_values)
@example(r"\u0000")
@example({r"\u0000": [r"a\u0000"]})
@example(2**64)
@example(-(2**63) - 1)
@example(10**4299)
@example([-0.0, 5e-324, sys.float_info.max])
@example({"": "\x7f\u2028\U0001f600"})
def test_every_json_value_comes_back_as_it_was(value: object) -> None:
    """What is decoded equals what was published, type by type."""
    assert repr(decode(value)) == repr(value)


def test_a_tuple_is_a_list() -> None:
    """JSON has one kind of sequence."""
    assert decode({"a": (1, (2, ()))}) == {"a": [1, [2, []]]}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (OldColour.RED, "red"),
        (Name("n"), "n"),
        (Size.SMALL, 1),
        (Number(7), 7),
        (2**70, 2**70),
        (Amount(1.5), 1.5),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("a"), {"a": 1}),
        (Basket([1, Colour.RED]), [1, "red"]),
        (Point(1, Size.SMALL), [1, 1]),
        ({Colour.RED: 1}, {"red": 1}),
        ({Name("n"): 1}, {"n": 1}),
    ],
    ids=repr,
)
def test_subclasses_of_json_values_are_encoded_as_those(value: object, plain: object) -> None:
    """At the top and further down, next to any neighbour."""
    assert decode(value) == plain
    assert decode({"a": [value, "b"]}) == {"a": [plain, "b"]}


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        (Box([1]), {"content": [1], "label": "box"}),
        (Box(Crate(Box(None))), {"content": {"content": {"content": None, "label": "box"}}, "label": "box"}),
        (Crate({"a": 1}), {"content": {"a": 1}}),
        (Parcel(content=1), {"content": 1, "sent_at": "2026-01-01T12:00:00Z", "weight": 1.0}),
        (
            Box(Parcel(content=1)),
            {"content": {"content": 1, "sent_at": "2026-01-01T12:00:00Z", "weight": 1.0}, "label": "box"},
        ),
        (Box([Name("n"), Number(1), Amount(0.5)]), {"content": ["n", 1, 0.5], "label": "box"}),
        (Box(NOON), {"content": "2026-01-01T12:00:00Z", "label": "box"}),
        (Box({3}), {"content": [3], "label": "box"}),
        (Box(PlainEnum.RED), {"content": "red", "label": "box"}),
    ],
    ids=repr,
)
def test_models_become_plain_at_any_depth(model: object, plain: object) -> None:
    """A dataclass, a Struct or a pydantic model: its own types are its own business."""
    assert decode(model) == plain
    assert decode({"a": [0, (model,)]}) == {"a": [0, [plain]]}


@pytest.mark.parametrize(
    ("payload", "path", "found"),
    [
        (math.nan, "payload", "is nan"),
        ({"a": math.inf}, 'payload["a"]', "is inf"),
        ([0, [-math.inf]], "payload[1][0]", "is -inf"),
        (Amount(math.nan), "payload", "is nan"),
        ({"items": [1, 2, 3, {4}]}, 'payload["items"][3]', "is of type set"),
        (frozenset(), "payload", "is of type frozenset"),
        ({"a": b"x"}, 'payload["a"]', "is of type bytes"),
        (bytearray(b"x"), "payload", "is of type bytearray"),
        (memoryview(b"x"), "payload", "is of type memoryview"),
        ((NOON,), "payload[0]", "is of type datetime.datetime"),
        (date(2026, 1, 1), "payload", "is of type datetime.date"),
        (timedelta(1), "payload", "is of type datetime.timedelta"),
        (Decimal(1), "payload", "is of type decimal.Decimal"),
        (uuid.UUID(int=1), "payload", "is of type uuid.UUID"),
        (1j, "payload", "is of type complex"),
        (object(), "payload", "is of type object"),
        (SimpleNamespace(a=1), "payload", "is of type types.SimpleNamespace"),
        (MagicMock(), "payload", "is of type unittest.mock.MagicMock"),
        (PlainEnum.RED, "payload", "PlainEnum"),
        (UserDict(a=1), "payload", "is of type collections.UserDict"),
        (MappingProxyType({"a": 1}), "payload", "is of type mappingproxy"),
        (deque([1]), "payload", "is of type collections.deque"),
        (range(3), "payload", "is of type range"),
        ({}.keys(), "payload", "is of type dict_keys"),
        ((i for i in [1]), "payload", "is of type generator"),
        (msgspec.Raw(b"{"), "payload", "is of type msgspec.Raw"),
        (msgspec.UNSET, "payload", "UnsetType"),
        (Box, "payload", "is of type type"),
        ({"a": Parcel}, 'payload["a"]', "ModelMetaclass"),
        ({1: "a"}, "payload", "has a key of type int"),
        ({"a": {None: 1}}, 'payload["a"]', "has a key of type NoneType"),
        ({b"a": 1}, "payload", "has a key of type bytes"),
        ("a\0", "payload", "contains a NUL character at position 1"),
        ([r"\u0000", "\0"], "payload[1]", "contains a NUL character at position 0"),
        ({"a": {"b\0": 1}}, r'the key "b\x00" of payload["a"]', "contains a NUL character at position 1"),
        ({"a": ["é\ud800"]}, 'payload["a"][0]', "contains a lone surrogate at position 1"),
        ({"\udc00": 1}, r'the key "\udc00" of payload', "contains a lone surrogate at position 0"),
        (Name("\0"), "payload", "contains a NUL character"),
        ({Name("\0"): 1}, r'the key "\x00" of payload', "contains a NUL character"),
        (OrderedDict(a=math.nan), 'payload["a"]', "is nan"),
        (Basket([{1}]), "payload[0]", "is of type set"),
        (Point(1, math.nan), "payload[1]", "is nan"),
        (defaultdict(int, {1: 2}), "payload", "has a key of type int"),
        ({"n": 10**4300}, 'payload["n"]', "is an integer of about 4301 digits"),
        (Number(-(10**5000)), "payload", "digits"),
        (Box(math.nan), 'payload["content"]', "is nan"),
        ([Box([Crate(math.inf)])], 'payload[0]["content"][0]["content"]', "is inf"),
        (Box({1: 2}), 'payload["content"]', "has a key of type int"),
        (Box("\0"), 'payload["content"]', "contains a NUL character"),
        ({"a": Box("\ud800")}, 'payload["a"]["content"]', "contains a lone surrogate"),
        (Box(object()), "payload", "Box that can't be converted to JSON (it holds a value of type object)"),
        (Crate(msgspec.Raw(b"{")), "payload", "Crate that can't be converted to JSON"),
        (Parcel(content=1, weight=math.nan), 'payload["weight"]', "is nan"),
        (Box(Parcel(content="\0")), 'payload["content"]["content"]', "contains a NUL character"),
        (Parcel(content=object()), "payload", "Parcel that can't be converted to JSON"),
        ({"it's": {1}}, 'payload["it\'s"]', "is of type set"),
    ],
    ids=lambda value: (
        None if isinstance(value, str) else re.sub("0x[0-9a-f]+|10{100,}", "…", type(value).__name__)
    ),
)
def test_what_is_not_json_is_refused_with_its_place(payload: object, path: str, found: str) -> None:
    """The error says where, what was found and what is expected, and can be printed."""
    with pytest.raises(InvalidPayloadError) as caught:
        encode(payload)

    assert caught.value.path == path
    assert found in caught.value.found
    assert caught.value.expected
    assert str(caught.value).encode()


class Chameleon:
    """Turns into something that is no JSON value either."""

    def __init__(self, dump: object) -> None:
        self.dump = dump

    def model_dump(self, mode: str) -> object:
        assert mode == "json"
        return self.dump


def test_a_model_that_turns_into_itself_is_refused() -> None:
    """Conversion is tried once, not for ever."""
    chameleon = Chameleon(None)
    chameleon.dump = chameleon
    with pytest.raises(InvalidPayloadError, match=r"turns into a .*Chameleon"):
        encode([chameleon])


def test_what_a_model_turns_into_gets_the_same_checks() -> None:
    """A set is no JSON value, whoever gives it."""
    assert decode([Chameleon("text")]) == ["text"]
    with pytest.raises(InvalidPayloadError, match=r"payload\[0\]\[0\] is of type set"):
        encode([Chameleon([{1}])])


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_a_hundred_levels_are_the_limit(kind: type[object]) -> None:
    """The hundredth is accepted, the next one refused, also where a copy has to be made."""
    deepest = nest(98, kind)

    assert encode([[deepest]])
    assert encode([(Colour.RED, deepest)])
    assert encode([Box(deepest)])
    for payload in ([[[deepest]]], [[Colour.RED, [deepest]]], [[Box(deepest)]], nest(50_000, kind)):
        with pytest.raises(
            InvalidPayloadError, match="nested deeper than 100 levels, or contains itself"
        ) as caught:
            encode(payload)

        assert len(str(caught.value)) < 400


def make_cyclic_payloads() -> list[object]:
    """Containers and models that contain themselves."""
    cyclic_list: list[object] = []
    cyclic_list += [cyclic_list, cyclic_list]
    cyclic_dict: dict[str, object] = {}
    cyclic_dict |= {"a": cyclic_dict, "b": [Colour.RED, cyclic_dict]}
    cyclic_basket = Basket()
    cyclic_basket.append(cyclic_basket)
    box, crate, parcel = Box(None), Crate(None), Parcel(content=None)
    box.content, crate.content, parcel.content = [box], crate, parcel
    box_of_list: list[object] = []
    box_of_list.append(Box(box_of_list))
    return [cyclic_list, cyclic_dict, cyclic_basket, box, crate, parcel, box_of_list]


@pytest.mark.parametrize("payload", make_cyclic_payloads(), ids=lambda value: type(value).__name__)
def test_what_contains_itself_is_refused(payload: object) -> None:
    """Cleanly, and without trying for long."""
    began = time.perf_counter()
    with pytest.raises(InvalidPayloadError, match=r"contains itself|can't be converted"):
        encode(payload)

    assert time.perf_counter() - began < 1


def test_a_container_that_occurs_twice_is_no_cycle() -> None:
    """It is just written twice."""
    shared = {"a": 1}

    assert decode([shared, shared]) == [shared, shared]


@given(json_values)
@example({"a" * 50: None})
@example(["a" * 50])
@example([0] * 50)
def test_the_limit_is_the_encoded_size(value: object) -> None:
    """Exactly as large is accepted, one byte less is refused, with or without a copy."""
    size = len(encode(value))

    assert len(encode_payload(value, size)) == size
    with pytest.raises(InvalidPayloadError, match=f"is more than {size - 1} bytes of JSON; expected at most"):
        encode_payload(value, size - 1)

    boxed = [Colour.RED, value]
    boxed_size = len(encode(boxed))

    assert len(encode_payload(boxed, boxed_size)) == boxed_size
    with pytest.raises(InvalidPayloadError, match="is more than"):
        encode_payload(boxed, boxed_size - 1)


def make_shared_texts() -> list[object]:
    """10 GB of JSON in a megabyte of memory."""
    return ["x" * 100_000] * 100_000


@pytest.mark.parametrize(
    "make_payload",
    [
        lambda: {"a": ["x" * 2**30]},
        lambda: [Colour.RED, Name("x" * 2**27)],
        lambda: Box("x" * 2**27),
        lambda: [Crate(["x" * 2**27])],
        lambda: make_shared_texts(),
        lambda: [Colour.RED, *make_shared_texts()],
        lambda: Box(make_shared_texts()),
        lambda: [make_shared_texts()[:10]] * 100_000,
        lambda: {str(n): make_shared_texts() for n in range(10)},
        lambda: [{"x" * 100_000: None}] * 20_000,
        lambda: [0] * (LIMIT + 1),
        lambda: Basket([0] * (LIMIT + 1)),
    ],
)
def test_what_must_exceed_the_limit_is_refused_before_it_is_encoded(
    make_payload: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the length of a text says enough, and a shared one counts each time."""
    monkeypatch.setattr(payloads, "_encode", lambda value: pytest.fail("it was encoded"))
    payload = make_payload()
    began = time.thread_time()
    with pytest.raises(InvalidPayloadError, match="is more than 16777216 bytes of JSON"):
        encode(payload)

    # A few microseconds; the rest is for a garbage collection that may fall into it.
    assert time.thread_time() - began < 0.5


leaves = (
    json_scalars
    | st.floats()
    | st.text(max_size=3, alphabet="a\0\ud800\\u0é")
    | st.sampled_from([Colour.RED, Size.SMALL, Name("n"), Name("\0"), Amount(1), Amount("inf")])
    | st.sampled_from([{1}, b"x", NOON, Decimal(1), object(), PlainEnum.RED, range(2)])
)
keys = st.text(max_size=2, alphabet="ab") | st.sampled_from([Colour.RED, Name("k"), "\0", "\ud800", 1, None])


def add_container(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Every kind of container and model around other values."""
    lists = st.lists(inner, max_size=3)
    dicts = st.dictionaries(keys, inner, max_size=3)
    return (
        st.one_of(lists, lists.map(tuple), lists.map(Basket), dicts, dicts.map(OrderedDict))
        | st.builds(Point, inner, inner)
        | st.builds(Box, inner)
        | st.builds(Crate, inner)
    )


def is_json(value: object, *, in_model: bool = False) -> bool:
    """The rule, as plainly as it can be put."""
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        case None | bool():
            return True
        case int():
            return abs(value) < 10**4300
        case float():
            return math.isfinite(value)
        case dict():
            return all(
                isinstance(key, str) and is_json(key) and is_json(part, in_model=in_model)
                for key, part in value.items()
            )
        case list() | tuple():
            return all(is_json(part, in_model=in_model) for part in value)
        case Box() | Crate():
            return is_json(value.content, in_model=True)
        case set() | bytes() | datetime() | Decimal() | PlainEnum():
            # msgspec writes them, and a typed handler reads them back.
            return in_model
        case _:
            return False


@given(st.recursive(leaves, add_container, max_leaves=8))
@example(Box({"a": [Colour.RED, {1}]}))
@example([Box([1.0]), math.nan])
def test_the_verdict_is_that_of_the_rule(payload: object) -> None:
    """Nothing that is not JSON gets through, and nothing that is JSON is refused."""
    try:
        encoded = encode(payload)
    except InvalidPayloadError:
        assert not is_json(payload)
    else:
        assert is_json(payload)
        assert b"\\u0000" not in encoded.replace(b"\\\\", b"")
        assert msgspec.json.encode(msgspec.json.decode(encoded)) == encoded
