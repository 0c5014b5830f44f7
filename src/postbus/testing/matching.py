"""What is different between an expected value and a stored one? More keys than expected are fine."""

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec

from postbus.config import DEFAULT_MAX_PAYLOAD_BYTES
from postbus.policy.payloads import encode_payload

_LONGEST_SHOWN = 200


def find_difference(expected: object, found: object, path: str = "payload") -> str | None:
    """What keeps *found*, a JSON value, from being what is expected; None if nothing does.

    A dict is expected to have at least these keys, a list to have just these items, at every depth.
    A dataclass, msgspec Struct or pydantic model stands for the JSON that it is published as.

    >>> find_difference({"order": 42}, {"order": 42, "total": 7})
    >>> find_difference({"order": {"id": 42}}, {"order": {"id": 41}})
    "payload['order']['id'] is 41, expected 42"
    """
    if is_model(expected):
        expected = msgspec.json.decode(encode_payload(expected, DEFAULT_MAX_PAYLOAD_BYTES))
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return _find_in_mapping(expected, found, path)
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return _find_in_sequence(expected, found, path)
    # In Python 1 == True; in JSON they are not the same.
    is_bool_on_one_side = isinstance(expected, int | float) and (
        isinstance(expected, bool) is not isinstance(found, bool)
    )
    if expected == found and not is_bool_on_one_side:
        return None
    return f"{path} is {show(found)}, expected {show(expected)}"


def is_model(value: object) -> bool:
    """Whether it is a dataclass, msgspec Struct or pydantic model."""
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_dataclass or isinstance(value, msgspec.Struct) or hasattr(type(value), "model_dump")


def show(value: object) -> str:
    """The value, fit for one line of a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}… ({len(text)} characters)"


def _find_in_mapping(
    expected: Mapping[object, object], found: Mapping[object, object], path: str
) -> str | None:
    for key, value in expected.items():
        if key not in found:
            return f"{path}[{key!r}] is missing, expected {show(value)}"
        difference = find_difference(value, found[key], f"{path}[{key!r}]")
        if difference is not None:
            return difference
    return None


def _find_in_sequence(expected: Sequence[object], found: Sequence[object], path: str) -> str | None:
    if len(expected) != len(found):
        return f"{path} has {len(found)} items, expected {len(expected)}"
    for index, (value, item) in enumerate(zip(expected, found, strict=True)):
        difference = find_difference(value, item, f"{path}[{index}]")
        if difference is not None:
            return difference
    return None
