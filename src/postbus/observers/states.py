"""StateStore: states of one type by key, kept as JSON."""

import dataclasses
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, get_origin

import msgspec

from postbus.config import DEFAULT_MAX_PAYLOAD_BYTES
from postbus.errors import InvalidConfigError, InvalidPayloadError, InvalidStateError, StateTypeError
from postbus.policy.names import find_id_flaw
from postbus.policy.payloads import encode_payload
from postbus.ports import StateTable

if TYPE_CHECKING:
    # So that a state store without a type is one of dicts; type checkers know it, older Pythons do not.
    from typing_extensions import TypeVar

    S = TypeVar("S", default=dict[str, Any])
else:
    from typing import TypeVar

    S = TypeVar("S")

_EXPECTED_ID = "a string of 1 to 255 printable characters"
_EXPECTED_TYPE = "dict, list, int or another JSON type, a dataclass, a msgspec Struct or a pydantic model"
_PLAIN_TYPES = (dict, list, str, int)
_PAGE_SIZE = 100
# How the path in an InvalidPayloadError begins.
_PATH_START = re.compile(r'^(the key ".*?" of )?payload')


class HasStates(Protocol):
    """A store, as far as states go."""

    @property
    def states(self) -> StateTable:
        """Its table of states."""
        ...


class StateStore(Generic[S]):
    """States of one type by key, in the database of a store: StateStore(bus.store, "orders", OrderView).

    The type is dict, list, int, …, a dataclass, a msgspec Struct or a pydantic model. A name
    keeps its keys apart from those of other state stores. What a projection or saga keeps
    here, others should only read: it writes without looking whether somebody else did.
    """

    _store_type: ClassVar[type] = object

    def __init__(
        self,
        store: HasStates,
        name: str,
        state_type: type[S] = dict,  # type: ignore[assignment]
    ) -> None:
        if not hasattr(store, "states") or not isinstance(store, self._store_type):
            kind = "store" if self._store_type is object else self._store_type.__name__
            raise InvalidConfigError("the store of a state store", store, f"a {kind}, such as bus.store")
        if find_id_flaw(name) is not None:
            raise InvalidConfigError("the name of a state store", name, _EXPECTED_ID)
        self._name, self._table = str.__str__(name), store.states
        self._state_type = state_type
        self._class = _find_class(state_type)
        self._read: Callable[[bytes], S] = _make_decoder(state_type)

    @property
    def name(self) -> str:
        """Sets its keys apart from those of other state stores in the same database."""
        return self._name

    @property
    def table(self) -> StateTable:
        """Where its states are."""
        return self._table

    async def get(self, key: str) -> S | None:
        """The state under this key, if there is one. StateTypeError."""
        state_json = await self._table.get(self._name, self._check_key(key))
        return None if state_json is None else self._decode(state_json, f"under the key {key!r}, ")

    async def put(self, key: str, state: S) -> None:
        """Keep this state under the key, instead of any other. InvalidStateError."""
        await self._table.put(self._name, self._check_key(key), self.encode(state))

    async def delete(self, key: str) -> None:
        """Keep no state under this key. Idempotent."""
        await self._table.put(self._name, self._check_key(key), None)

    async def items(self) -> AsyncIterator[tuple[str, S]]:
        """Every key with its state, in the order of the keys; read in pages, so any number will do."""
        after = ""
        while page := await self._table.items(self._name, after, _PAGE_SIZE):
            for key, state_json in page:
                yield key, self._decode(state_json, f"under the key {key!r}, ")
            after = page[-1][0]

    def encode(self, state: S) -> bytes:
        """A state as JSON that decode can read. InvalidStateError."""
        if state is None or (self._class is not None and not isinstance(state, self._class)):
            raise self._invalid(f"the state is of type {type(state).__qualname__}", self._type_name)
        try:
            state_json = encode_payload(_dump(state), DEFAULT_MAX_PAYLOAD_BYTES)
        except InvalidPayloadError as error:
            path = _PATH_START.sub(r"\1state", error.path)
            raise self._invalid(f"{path} {error.found}", error.expected) from error
        if self._state_type is not dict:
            self._check_readable(state_json)
        return state_json

    def decode(self, state_json: bytes) -> S:
        """The state that was encoded. StateTypeError."""
        return self._decode(state_json, "")

    def _decode(self, state_json: bytes, where: str) -> S:
        try:
            return self._read(state_json)
        except ValueError as error:
            raise StateTypeError(self._name, self._type_name, where + _in_one_line(error)) from error

    def _check_readable(self, state_json: bytes) -> None:
        # A state that can be written and not be read would turn every later event into a dead letter.
        try:
            self._read(state_json)
        except ValueError as error:
            found = f"the state would not be readable as {self._type_name}: {_in_one_line(error)}"
            raise self._invalid(found, "values that fit the types of their fields") from error

    def _check_key(self, key: object) -> str:
        flaw = find_id_flaw(key)
        if flaw is not None:
            shown = f"the key {key[:80]!r}" if isinstance(key, str) else "the key"
            raise self._invalid(f"{shown} {flaw}", _EXPECTED_ID)
        return str.__str__(key)

    def _invalid(self, found: str, expected: str) -> InvalidStateError:
        return InvalidStateError(self._name, found, expected)

    @property
    def _type_name(self) -> str:
        kind = self._state_type
        return kind.__qualname__ if get_origin(kind) is None and isinstance(kind, type) else str(kind)


def _is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def _find_class(state_type: Any) -> type | None:
    """The class that every state of this type is an instance of, where there is one."""
    kind = get_origin(state_type) or state_type
    if not isinstance(kind, type):
        return None
    is_model = issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or _is_pydantic(kind)
    return kind if is_model or kind in _PLAIN_TYPES else None


def _make_decoder(state_type: Any) -> Callable[[bytes], Any]:
    if _is_pydantic(state_type):
        return state_type.model_validate_json  # type: ignore[no-any-return]
    try:
        if isinstance(msgspec.inspect.type_info(state_type), msgspec.inspect.CustomType):
            raise TypeError("neither msgspec nor pydantic knows it")
        return msgspec.json.Decoder(state_type, dec_hook=_load).decode
    except TypeError as error:
        raise InvalidConfigError("the type of a state store", state_type, _EXPECTED_TYPE) from error


def _load(kind: Any, value: object) -> object:
    """What msgspec does not know: a pydantic model inside a dataclass, Struct or list."""
    if _is_pydantic(kind):
        return kind.model_validate_json(msgspec.json.encode(value))
    raise TypeError(f"{kind!r} is not known to msgspec")


def _dump(state: object) -> object:
    # With the names that it reads, and without computed fields, which it may refuse to read.
    if _is_pydantic(type(state)):
        return state.model_dump(mode="json", by_alias=True, round_trip=True)  # type: ignore[attr-defined]
    return state


def _in_one_line(error: ValueError) -> str:
    return " ".join(str(error).split())
