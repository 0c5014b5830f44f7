"""Metadata is a small dict of strings."""

import enum
from collections import OrderedDict
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postbus.errors import InvalidMetadataError
from postbus.policy import payloads
from postbus.policy.payloads import MAX_METADATA_BYTES, check_metadata

texts = st.text(max_size=5, alphabet=st.characters() | st.sampled_from("a\0\ud800é"))


class Source(enum.StrEnum):
    WEB = "web"


def is_clean(text: object) -> bool:
    """Whether it is a str that every store can keep."""
    return isinstance(text, str) and "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def test_no_metadata_is_fine() -> None:
    """None stays None."""
    assert check_metadata(None) is None


def test_metadata_is_copied() -> None:
    """What the caller does to its dict later doesn't reach the event."""
    metadata = {"source": "web"}
    checked = check_metadata(metadata)
    metadata["source"] = "changed"

    assert checked == {"source": "web"}


@pytest.mark.parametrize(
    "metadata",
    [MappingProxyType({"a": "b"}), OrderedDict(a="b"), {"a": "b"}],
    ids=lambda value: type(value).__name__,
)
def test_every_mapping_becomes_a_plain_dict(metadata: object) -> None:
    """Stores encode it and know plain dicts only."""
    assert type(check_metadata(metadata)) is dict
    assert check_metadata(metadata) == {"a": "b"}


def test_enum_members_become_plain_text() -> None:
    """In keys and in values."""
    checked = check_metadata({Source.WEB: Source.WEB})

    assert checked == {"web": "web"}
    assert [type(text) for item in checked.items() for text in item] == [str, str]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("source=web", "metadata is of type str; expected a dict of str"),
        ([("a", "b")], "metadata is of type list; expected a dict of str"),
        ({"attempt": 3}, 'metadata["attempt"] is of type int; expected a str'),
        ({"note": None}, 'metadata["note"] is of type NoneType; expected a str'),
        ({"note": b"x"}, 'metadata["note"] is of type bytes; expected a str'),
        ({1: "a"}, "metadata has a key of type int; expected a str"),
        ({"a\0": "b"}, r'the key "a\x00" of metadata contains a NUL character at position 1'),
        ({"a": "b\0"}, 'metadata["a"] contains a NUL character at position 1'),
        ({"\udc00": "b"}, r'the key "\udc00" of metadata contains a lone surrogate at position 0'),
        ({"a": "éé\ud800"}, 'metadata["a"] contains a lone surrogate at position 2'),
    ],
)
def test_bad_metadata_is_refused_with_its_place(metadata: object, message: str) -> None:
    """The message says where, what was found and what is expected, and can be printed."""
    with pytest.raises(InvalidMetadataError) as caught:
        check_metadata(metadata)

    assert message in str(caught.value)
    assert str(caught.value).encode()


def test_metadata_may_be_as_large_as_the_limit() -> None:
    """Counted as encoded JSON: {"a":"…"} has eight bytes around the text."""
    assert check_metadata({"a": "x" * (MAX_METADATA_BYTES - 8)}) is not None
    with pytest.raises(InvalidMetadataError, match="too large; expected at most 65536 bytes"):
        check_metadata({"a": "x" * (MAX_METADATA_BYTES - 7)})


def test_size_counts_bytes_and_escapes() -> None:
    """A text that is short in characters can be too large in bytes."""
    for text in ("é" * (MAX_METADATA_BYTES // 2), "\n" * (MAX_METADATA_BYTES // 2)):
        with pytest.raises(InvalidMetadataError, match="too large"):
            check_metadata({"a": text})


def test_what_must_exceed_the_limit_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many large texts there are, none of them costs time or memory."""
    monkeypatch.setattr(payloads, "_encode", lambda value: pytest.fail("it was encoded"))
    with pytest.raises(InvalidMetadataError, match="too large"):
        check_metadata(dict.fromkeys(map(str, range(1000)), "x" * 100_000))


@given(st.dictionaries(texts | st.integers(), texts | st.none(), max_size=4))
@example({"a": ""})
def test_metadata_is_accepted_exactly_if_every_text_is_clean(metadata: dict[object, object]) -> None:
    """And then it comes back equal, and can be encoded and decoded."""
    try:
        checked = check_metadata(metadata)
    except InvalidMetadataError:
        assert not all(is_clean(text) for item in metadata.items() for text in item)
    else:
        assert all(is_clean(text) for item in metadata.items() for text in item)
        assert checked == metadata
        assert msgspec.json.decode(msgspec.json.encode(checked)) == metadata
