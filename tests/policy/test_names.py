"""What may be an event's type and an event's id."""

import enum
import unicodedata
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidEventIdError, InvalidEventTypeError
from postbus.policy.names import check_event_id, check_event_type


class OrderEvent(str, enum.Enum):  # noqa: UP042
    # Not a StrEnum: its str() is "OrderEvent.PLACED", which must not become the event's type.
    PLACED = "order.placed"


@pytest.mark.parametrize(
    "event_type",
    [
        "order",
        "order.placed",
        "order.item-1.added_2",
        "Bestellung.ausgelöst",
        "注文.確定",
        "👩‍🚀.landed",
        "a" * 255,
    ],
)
def test_a_dotted_name_is_an_event_type(event_type: str) -> None:
    """One segment or many, in any script."""
    assert check_event_type(event_type) == event_type


def test_an_enum_member_becomes_its_plain_text() -> None:
    """What is stored is the value, not the enum or its name."""
    assert check_event_type(OrderEvent.PLACED) == "order.placed"
    assert type(check_event_type(OrderEvent.PLACED)) is str
    assert type(check_event_id(OrderEvent.PLACED)) is str


@pytest.mark.parametrize(
    ("event_type", "reason"),
    [
        (None, "is of type NoneType"),
        (42, "is of type int"),
        (b"order.placed", "is of type bytes"),
        ("", "is empty"),
        (".", "empty segment"),
        (".placed", "empty segment"),
        ("order.", "empty segment"),
        ("order..placed", "empty segment"),
        ("order.*", 'contains "*"'),
        ("order placed", "the character ' '"),
        ("order\tplaced", r"the character '\t'"),
        ("order\u2028placed", r"the character '\u2028'"),
        ("order.\0", r"the character '\x00'"),
        ("order.\x85", r"the character '\x85'"),
        ("order.\udfff", r"the character '\udfff'"),
        ("a" * 256, "is 256 characters long"),
    ],
)
def test_a_bad_event_type_is_refused_with_the_reason(event_type: object, reason: str) -> None:
    """The message names what is wrong, and can be printed."""
    with pytest.raises(InvalidEventTypeError) as caught:
        check_event_type(event_type)

    assert reason in str(caught.value)
    assert str(caught.value).encode()


@given(st.text(max_size=6, alphabet=st.characters() | st.sampled_from(".* \n\0\ud800")))
def test_a_text_is_an_event_type_exactly_if_its_segments_are_clean(text: str) -> None:
    """No star, no space of any kind, no control character, no lone surrogate, no empty segment."""
    is_event_type = all(text.split(".")) and not any(
        char == "*" or char.isspace() or unicodedata.category(char) in {"Cc", "Cs"} for char in text
    )
    try:
        check_event_type(text)
    except InvalidEventTypeError:
        assert not is_event_type
    else:
        assert is_event_type


@pytest.mark.parametrize("event_id", ["1", "order 42: placed", "é", "a" * 255, "urn:uuid:1*"])
def test_printable_text_is_an_event_id(event_id: str) -> None:
    """An id is a name of the caller's choice."""
    assert check_event_id(event_id) == event_id


@given(st.uuids())
def test_a_uuid_is_an_event_id(event_id: uuid.UUID) -> None:
    """It becomes its usual text."""
    assert check_event_id(event_id) == str(event_id)


@pytest.mark.parametrize(
    ("event_id", "reason"),
    [
        (None, "is of type NoneType"),
        (42, "is of type int"),
        (b"42", "is of type bytes"),
        ("", "is empty"),
        ("a" * 256, "is 256 characters long"),
        ("a\0", "not printable"),
        ("a\n", "not printable"),
        ("a\x7f", "not printable"),
        ("a\ud800", "not printable"),
    ],
)
def test_a_bad_event_id_is_refused_with_the_reason(event_id: object, reason: str) -> None:
    """The message names what is wrong, and can be printed."""
    with pytest.raises(InvalidEventIdError) as caught:
        check_event_id(event_id)

    assert reason in str(caught.value)
    assert str(caught.value).encode()


@given(st.text(max_size=6, alphabet=st.characters() | st.sampled_from("a \0\x9f\ud800")))
def test_a_text_is_an_event_id_exactly_if_it_is_printable(text: str) -> None:
    """Nothing that could end a text early or fail to encode gets through."""
    try:
        check_event_id(text)
    except InvalidEventIdError:
        assert not text or not text.isprintable()
    else:
        assert text
        assert text.isprintable()
        assert text.encode()
