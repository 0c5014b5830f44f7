"""Is this payload JSON, and if not, which part of it?"""

import dataclasses
import math
import sys
from collections.abc import Collection, Mapping

import msgspec

from postbus.errors import InvalidMetadataError, InvalidPayloadError

DEEPEST_NESTING = 100
MAX_METADATA_BYTES = 64 * 1024

_EXPECTED = (
    "JSON: None, bool, int, finite float, str, list, tuple, dict with str keys, "
    "or a dataclass, msgspec Struct or pydantic model"
)
_LONGEST_SHOWN_KEY = 40
_LONGEST_SHOWN_PATH = 200
_EXPECTED_METADATA_SIZE = f"at most {MAX_METADATA_BYTES} bytes of JSON"
# Lower than what the longest of texts could leave.
_NOT_PLAIN = -(2**63)
_WITHOUT_PARTS = frozenset({int, bool, type(None)})
_INFINITY = math.inf
_BACKSLASH = ord("\\")
_ENCODED_NUL = rb"\u0000"
_encode = msgspec.json.Encoder().encode


def encode_payload(payload: object, max_bytes: int) -> bytes:
    """The payload as JSON; InvalidPayloadError names the part that is not JSON or says it is too large.

    >>> encode_payload({"order": 42, "items": ("a", "b")}, max_bytes=100)
    b'{"order":42,"items":["a","b"]}'
    >>> encode_payload({"items": [1, {2}]}, max_bytes=100)
    Traceback (most recent call last):
    ...
    postbus.errors.InvalidPayloadError: payload["items"][1] is of type set; expected JSON: ...
    """
    if type(payload) is dict:
        room = _find_room_left(payload, max_bytes, 1)
    else:
        room = _find_room_left((payload,), max_bytes, 0)
    if room == _NOT_PLAIN:
        payload = _PlainCopy(max_bytes).copy(payload)
    elif room < 0:
        raise _too_large(max_bytes)
    try:
        encoded = _encode(payload)
    except ValueError:
        # A lone surrogate or an endless integer: the copy raises, and says where it is.
        encoded = _encode(_PlainCopy(max_bytes).copy(payload))
    # A text may spell out the six characters of an encoded NUL: only the copy can tell.
    if _BACKSLASH in encoded and _ENCODED_NUL in encoded:
        _PlainCopy(max_bytes).copy(payload)
    if len(encoded) > max_bytes:
        raise _too_large(max_bytes)
    return encoded


def check_metadata(metadata: object) -> dict[str, str] | None:
    """The metadata as a plain dict; InvalidMetadataError unless it is None or strings by strings.

    >>> check_metadata({"source": "web"})
    {'source': 'web'}
    >>> check_metadata({"attempt": 3})
    Traceback (most recent call last):
    ...
    postbus.errors.InvalidMetadataError: metadata["attempt"] is of type int; expected a str; ...
    """
    if metadata is None:
        return None
    if not isinstance(metadata, (dict, Mapping)):
        raise _metadata_error(f"metadata is of type {_name_type(metadata)}", "a dict of str")
    checked: dict[str, str] = {}
    room = MAX_METADATA_BYTES
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise _metadata_error(f"metadata has a key of type {_name_type(key)}", "a str")
        if not isinstance(value, str):
            raise _metadata_error(f"metadata[{_show_key(key)}] is of type {_name_type(value)}", "a str")
        room -= len(key) + len(value)
        # Checked at once, so that no text larger than the limit is ever searched or encoded.
        if room < 0:
            raise _metadata_error("metadata is too large", _EXPECTED_METADATA_SIZE)
        _check_metadata_text(key, value)
        checked[str.__str__(key)] = str.__str__(value)
    if len(_encode(checked)) > MAX_METADATA_BYTES:
        raise _metadata_error("metadata is too large", _EXPECTED_METADATA_SIZE)
    return checked


def _check_metadata_text(key: str, value: str) -> None:
    flaw = _find_text_flaw(key)
    if flaw is not None:
        raise _metadata_error(f"the key {_show_key(key)} of metadata {flaw}", "text without it")
    flaw = _find_text_flaw(value)
    if flaw is not None:
        raise _metadata_error(f"metadata[{_show_key(key)}] {flaw}", "text without it")


def _find_room_left(container: Collection[object], room: int, depth: int) -> int:
    """How many bytes a plain JSON container leaves, at most; negative if it can't fit, or _NOT_PLAIN.

    This runs on every publish, so it only counts and compares. What is not plain is walked
    again by _PlainCopy, which is slow and knows the rest: subclasses, models, paths, messages.
    """
    if depth > DEEPEST_NESTING:
        return _NOT_PLAIN
    room -= len(container)
    if room < 0:
        return room
    if type(container) is dict:
        for key in container:
            if type(key) is not str:
                return _NOT_PLAIN
            room -= len(key)
        container = container.values()
    for part in container:
        kind = type(part)
        if kind is str:
            room -= len(part)  # type: ignore[arg-type]
        elif kind in _WITHOUT_PARTS:
            continue
        elif kind is float:
            if not -_INFINITY < part < _INFINITY:  # type: ignore[operator]
                return _NOT_PLAIN
        elif kind is dict or kind is list or kind is tuple:
            room = _find_room_left(part, room, depth + 1)  # type: ignore[arg-type]
        else:
            return _NOT_PLAIN
        if room < 0:
            return room
    return room


class _PlainCopy:
    """Copies a payload into plain JSON values, or raises InvalidPayloadError with the path."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._room = max_bytes

    def copy(self, value: object, path: str = "payload", depth: int = 0) -> object:
        """The value with every part of it plain; *depth* counts the containers around it."""
        self._take_room(1)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._copy_text(value, path)
        if isinstance(value, int):
            return _copy_integer(value, path)
        if isinstance(value, float):
            return _copy_float(value, path)
        if isinstance(value, (dict, list, tuple)):
            return self._copy_container(value, path, depth + 1)
        if _is_model(value):
            return self._copy_converted(_convert_model(value, path), path, depth)
        raise InvalidPayloadError(f"is of type {_name_type(value)}", _EXPECTED, path)

    def _copy_container(self, container: Collection[object], path: str, depth: int) -> object:
        if depth > DEEPEST_NESTING:
            found = f"is nested deeper than {DEEPEST_NESTING} levels, or contains itself"
            raise InvalidPayloadError(found, f"at most {DEEPEST_NESTING} levels", _shorten_path(path))
        # A container whose length alone is too much is never walked.
        if len(container) > self._room:
            raise _too_large(self._max_bytes)
        if not isinstance(container, dict):
            return [self.copy(part, f"{path}[{index}]", depth) for index, part in enumerate(container)]
        plain: dict[str, object] = {}
        for key, value in container.items():
            if not isinstance(key, str):
                found = f"has a key of type {_name_type(key)}"
                raise InvalidPayloadError(found, "a dict whose keys are all str", path)
            shown = _show_key(key)
            plain_key = self._copy_text(key, f"the key {shown} of {path}")
            plain[plain_key] = self.copy(value, f"{path}[{shown}]", depth)
        return plain

    def _copy_converted(self, value: object, path: str, depth: int) -> object:
        # Most models turn into plain values, which need no copy of their own.
        room = _find_room_left((value,), self._room, depth)
        if room >= 0:
            self._room = room
            return value
        if _is_model(value):
            raise InvalidPayloadError(f"turns into a {_name_type(value)}, which is no JSON", _EXPECTED, path)
        return self.copy(value, path, depth)

    def _copy_text(self, text: str, path: str) -> str:
        self._take_room(len(text))
        flaw = _find_text_flaw(text)
        if flaw is not None:
            raise InvalidPayloadError(flaw, "text without it", path)
        return str.__str__(text)

    def _take_room(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise _too_large(self._max_bytes)


def _copy_integer(value: int, path: str) -> int:
    plain = int.__int__(value)
    try:
        _encode(plain)
    except ValueError:
        # Python itself refuses to write or read longer ones, because that takes quadratic time.
        digit_count = sys.get_int_max_str_digits()
        found = f"is an integer of about {math.ceil(plain.bit_length() * math.log10(2))} digits"
        raise InvalidPayloadError(found, f"at most {digit_count} digits", path) from None
    return plain


def _copy_float(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise InvalidPayloadError(f"is {float.__repr__(value)}", "a finite number", path)
    return float.__float__(value)


def _is_model(value: object) -> bool:
    kind = type(value)
    # Asked of the class: an object that answers to every name, such as a mock, is no model.
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_dump")


def _convert_model(model: object, path: str) -> object:
    try:
        if hasattr(type(model), "model_dump"):
            return _dump(model)
        return msgspec.to_builtins(model, enc_hook=_dump)
    except RecursionError:
        raise InvalidPayloadError(f"is a {_name_type(model)} that contains itself", _EXPECTED, path) from None
    except (TypeError, ValueError) as error:
        found = f"is a {_name_type(model)} that can't be converted to JSON ({error})"
        raise InvalidPayloadError(found, _EXPECTED, path) from error


def _dump(value: object) -> object:
    """What msgspec does not know: a pydantic model, or a plain subclass of a JSON value."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")  # type: ignore[attr-defined]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"it holds a value of type {_name_type(value)}")


def _find_text_flaw(text: str) -> str | None:
    nul_at = text.find("\0")
    if nul_at >= 0:
        return f"contains a NUL character at position {nul_at}"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"contains a lone surrogate at position {error.start}"
    return None


def _too_large(max_bytes: int) -> InvalidPayloadError:
    return InvalidPayloadError(
        f"is more than {max_bytes} bytes of JSON",
        f"at most {max_bytes} bytes; store large content elsewhere and publish a reference to it",
    )


def _metadata_error(found: str, expected: str) -> InvalidMetadataError:
    return InvalidMetadataError(f"{found}; expected {expected}; nothing was stored")


def _name_type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _show_key(key: str) -> str:
    # repr escapes what can't be printed: the message has to survive a log.
    return f'"{repr(key[:_LONGEST_SHOWN_KEY])[1:-1]}"'


def _shorten_path(path: str) -> str:
    return path if len(path) <= _LONGEST_SHOWN_PATH else f"{path[:_LONGEST_SHOWN_PATH]}…"
