"""What a handler asks for with the annotation of its first parameter, and how it gets it."""

import dataclasses
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence

import msgspec

from postbus.errors import InvalidHandlerError, PayloadTypeError
from postbus.events import Event

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_JSON_TYPES = frozenset({dict, Mapping, list, Sequence, tuple, str, int, float, bool})
_SCALARS = (str, int, float)
_UNIONS = (typing.Union, types.UnionType)
# Any payload at all: there is nothing to convert to.
_ANYTHING = (typing.Any, object)
_ANY_OBJECT = (dict, dict[str, typing.Any], dict[str, object])
_LONGEST_REASON = 500
_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadType:
    """The type in which a handler wants the payload: inside its event, or instead of it."""

    type: object
    wants_event: bool
    # Whether every JSON object is of the type as it is.
    _is_any_object: bool = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_any_object", self.type in _ANY_OBJECT)

    def convert(self, event: Event) -> object:
        """What to call the handler with; PayloadTypeError if the payload does not fit.

        The payload of a purged event is gone: the handler gets None in its place.

        >>> from datetime import UTC, datetime
        >>> NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
        >>> event = Event(id="1", type="order.placed", payload=["7"], created_at=NOON)
        >>> PayloadType(tuple[str], wants_event=False).convert(event)
        ('7',)
        >>> PayloadType(list[int], wants_event=True).convert(event)
        Traceback (most recent call last):
        ...
        postbus.errors.PayloadTypeError: the payload of order.placed is no list[int]: Expected `int`, ...
        """
        if self._is_any_object and type(event.payload) is dict:
            # Its own, as every converted one is: others get the same event, and so does the next attempt.
            payload: object = event.payload.copy()
        else:
            payload = None if event.purged_at is not None else self._convert_payload(event)
        return msgspec.structs.replace(event, payload=payload) if self.wants_event else payload

    def _convert_payload(self, event: Event) -> object:
        try:
            return msgspec.convert(event.payload, self.type, str_keys=True, dec_hook=_convert_custom)
        except Exception as error:
            # Validators of the user's types run in there, and may raise anything.
            reason = f"{error}" if isinstance(error, ValueError) else f"{type(error).__qualname__}: {error}"
            raise PayloadTypeError(event.type, _show(self.type), _shorten(reason)) from error


def payload_type_of(handler: Callable[..., object]) -> PayloadType | None:
    """The payload type that the annotation of the first parameter names; None: the event as it is.

    Event[T] is the event with its payload as a T. A dataclass, a msgspec Struct, a pydantic model
    or a type of JSON, such as dict[str, int], is the payload itself. An annotation that can't be
    resolved, such as a name that is imported for type checkers only, says nothing.
    InvalidHandlerError if no payload can be converted to the type.

    >>> def count(event: Event[dict[str, int]]) -> None: ...
    >>> def tally(payload: dict[str, int]) -> None: ...
    >>> def log(event: Event) -> None: ...
    >>> payload_type_of(count)
    PayloadType(type=dict[str, int], wants_event=True)
    >>> payload_type_of(tally)
    PayloadType(type=dict[str, int], wants_event=False)
    >>> payload_type_of(log) is None
    True
    """
    payload_type = _read(_find_annotation(handler))
    if payload_type is not None:
        _check_convertible(handler, payload_type)
    return payload_type


def _find_annotation(handler: Callable[..., object]) -> object:
    """The annotation of the first parameter, evaluated; object if there is none or it can't be."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return object  # some built-ins have no signature
    first = next((parameter for parameter in parameters if parameter.kind in _POSITIONAL), None)
    if first is None or first.annotation is inspect.Parameter.empty:
        return object
    # Only this annotation is evaluated: the others may be for type checkers alone, and so may
    # be the import of Event itself.
    holder = types.SimpleNamespace(__annotations__={"first": first.annotation})
    names = {"Event": Event, **getattr(_find_function(handler), "__globals__", {})}
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["first"]
    except Exception:
        # Evaluating somebody's text may raise anything; what type checkers read is none of our business.
        return object


def _find_function(handler: object) -> object:
    """The function whose signature a callable has: its annotations are evaluated where it was written."""
    while True:
        if isinstance(handler, functools.partial):
            handler = handler.func
        elif hasattr(handler, "__wrapped__"):
            handler = handler.__wrapped__
        elif isinstance(handler, types.FunctionType):
            return handler
        elif isinstance(handler, type):
            handler = handler.__init__  # type: ignore[misc]
        elif isinstance(type(handler).__call__, types.FunctionType):
            handler = type(handler).__call__
        else:
            return handler


def _read(hint: object) -> PayloadType | None:
    members = [_unwrap(member) for member in _members(_unwrap(hint))]
    if len(members) == 1 and typing.get_origin(members[0]) is Event:
        (argument,) = typing.get_args(members[0])
        is_open = argument in _ANYTHING or isinstance(argument, typing.TypeVar)
        return None if is_open else PayloadType(argument, wants_event=True)
    if members and all(_is_payload_type(member) for member in members):
        return PayloadType(hint, wants_event=False)
    return None


def _unwrap(hint: typing.Any) -> object:
    """What Annotated, a NewType or an alias of a type stands for."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = hint.__origin__
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _members(hint: object) -> list[object]:
    """The types of a union without None, which stands for the payload of a purged event."""
    members = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return [member for member in members if member is not types.NoneType]


def _is_payload_type(hint: object) -> bool:
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct):
        return kind is not msgspec.Struct and not issubclass(kind, Event)
    return (
        kind in _JSON_TYPES
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or hasattr(kind, "model_validate")
    )


def _check_convertible(handler: Callable[..., object], payload_type: PayloadType) -> None:
    try:
        msgspec.json.Decoder(payload_type.type, dec_hook=_convert_custom)
    except NameError:
        return  # a part of it may be defined later in its module
    except TypeError as error:
        raise InvalidHandlerError(
            f"handler {getattr(handler, '__qualname__', handler)!s} asks for a {_show(payload_type.type)}, "
            f"to which no payload can be converted: {_shorten(str(error))}"
        ) from error


def _convert_custom(kind: typing.Any, value: object) -> object:
    """What msgspec does not know: a pydantic model, or a plain subclass of a JSON value."""
    if hasattr(kind, "model_validate_json"):
        # From JSON and not from Python values: there even a strict model takes the text of a datetime.
        # By its names: a model is stored under the names of its fields, whatever aliases it has.
        options = {"by_name": True} if _has_names(kind) else {}
        return kind.model_validate_json(_encode(value), **options)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(kind, type):
        base = next((base for base in _SCALARS if issubclass(kind, base)), None)
        if base is not None and isinstance(value, base):
            return kind(value)
    raise TypeError(f"{_show(kind)} is no type that can be made from JSON")


@functools.lru_cache
def _has_names(model: typing.Any) -> bool:
    """Whether its fields can be given by their names; pydantic has this since 2.11."""
    return "by_name" in inspect.signature(model.model_validate_json).parameters


def _show(kind: object) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _shorten(reason: str) -> str:
    # One line: the reason ends up in logs and dead letters.
    return textwrap.shorten(reason, _LONGEST_REASON, placeholder=" …")
