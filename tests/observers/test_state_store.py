"""A state store keeps states by key and refuses what it could not give back."""

from typing import Any

import pytest

from postbus.errors import InvalidConfigError, InvalidStateError, StateTypeError
from postbus.observers import StateStore
from postbus.stores.memory import InMemoryStore
from tests.observers.steps import OrderModel, OrderStruct, OrderView


async def test_a_state_is_read_as_it_was_put(store: InMemoryStore) -> None:
    """As an object of the type of the store."""
    states = StateStore(store, "orders", OrderView)
    await states.put("o-1", OrderView(total=3, items=["tea"]))

    assert await states.get("o-1") == OrderView(total=3, items=["tea"])


async def test_a_state_store_without_a_type_keeps_dicts(store: InMemoryStore) -> None:
    states = StateStore(store, "orders")
    await states.put("o-1", {"total": 3})

    assert await states.get("o-1") == {"total": 3}


async def test_a_key_without_a_state_has_none(store: InMemoryStore) -> None:
    assert await StateStore(store, "orders").get("o-1") is None


async def test_put_replaces_the_state_before(store: InMemoryStore) -> None:
    states = StateStore(store, "counts", int)
    await states.put("all", 1)
    await states.put("all", 2)

    assert await states.get("all") == 2


async def test_a_deleted_state_is_gone_and_deleting_again_is_fine(store: InMemoryStore) -> None:
    states = StateStore(store, "counts", int)
    await states.put("all", 1)
    await states.delete("all")
    await states.delete("all")

    assert await states.get("all") is None


async def test_state_stores_of_different_names_do_not_share_keys(store: InMemoryStore) -> None:
    """They may be in the same database."""
    await StateStore(store, "orders").put("k", {"total": 3})
    await StateStore(store, "counts", int).put("k", 7)

    assert await StateStore(store, "orders").get("k") == {"total": 3}
    assert [item async for item in StateStore(store, "counts", int).items()] == [("k", 7)]


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
async def test_items_gives_every_state_once_in_the_order_of_the_keys(
    store: InMemoryStore, count: int
) -> None:
    """Whether or not the last page is full."""
    states = StateStore(store, "counts", int)
    for number in reversed(range(count)):
        await states.put(f"{number:03}", number)

    assert [item async for item in states.items()] == [(f"{number:03}", number) for number in range(count)]


async def test_states_that_are_deleted_meanwhile_do_not_end_the_items(store: InMemoryStore) -> None:
    """A page goes on after the last key it has seen, whether that is still there or not."""
    states = StateStore(store, "counts", int)
    for number in range(150):
        await states.put(f"{number:03}", number)
    seen = []
    async for key, _ in states.items():
        seen.append(key)
        await states.delete(key)

    assert len(seen) == 150


@pytest.mark.parametrize("key", ["", "a" * 256, "a\nb", "a\0b", "\ud800", None, 5])
async def test_a_key_that_is_no_id_is_refused(store: InMemoryStore, key: Any) -> None:
    states = StateStore(store, "counts", int)

    with pytest.raises(InvalidStateError, match="1 to 255 printable characters"):
        await states.get(key)
    with pytest.raises(InvalidStateError, match="1 to 255 printable characters"):
        await states.put(key, 1)
    with pytest.raises(InvalidStateError, match="1 to 255 printable characters"):
        await states.delete(key)


@pytest.mark.parametrize("name", ["", "a" * 256, "a\nb", None])
def test_a_name_that_is_no_id_is_refused(store: InMemoryStore, name: Any) -> None:
    with pytest.raises(InvalidConfigError, match="the name of a state store is"):
        StateStore(store, name)


def test_what_is_no_store_is_refused() -> None:
    """Such as the bus itself, or the path of a file."""
    with pytest.raises(InvalidConfigError, match=r"'events\.db'; expected a store, such as bus\.store"):
        StateStore("events.db", "orders")  # type: ignore[arg-type]


class Unknown:
    """A class that nobody can read from JSON."""


@pytest.mark.parametrize("state_type", [Unknown, 5, "OrderView", int | Unknown])
def test_a_type_that_nobody_can_read_is_refused(store: InMemoryStore, state_type: Any) -> None:
    with pytest.raises(InvalidConfigError, match="expected dict, list, int"):
        StateStore(store, "orders", state_type)


@pytest.mark.parametrize(
    ("state_type", "state", "found"),
    [
        (dict, [1], "the state is of type list; expected dict"),
        (dict, None, "the state is of type NoneType; expected dict"),
        (int | None, None, "the state is of type NoneType"),
        (OrderView, {"total": 3}, "the state is of type dict; expected OrderView"),
        (OrderStruct, OrderView(3), "the state is of type OrderView; expected OrderStruct"),
        (OrderModel, {"total": 3}, "the state is of type dict; expected OrderModel"),
        (dict, {"a": [1, {2}]}, r'state\["a"\]\[1\] is of type set; expected JSON'),
        (dict, {"payload": {1: 2}}, r'state\["payload"\] has a key of type int'),
        (dict, {"\0": 1}, r'the key ".*" of state contains a NUL'),
        (OrderView, OrderView(float("nan")), r'state\["total"\] is nan'),  # type: ignore[arg-type]
        (OrderView, OrderView("3"), "not be readable as OrderView: Expected `int`"),  # type: ignore[arg-type]
        (OrderStruct, OrderStruct("3"), "not be readable as OrderStruct"),  # type: ignore[arg-type]
        (OrderModel, OrderModel.model_construct(total="x"), "not be readable as OrderModel: 1 validation"),
        (int, True, "not be readable as int"),
        (list[int], [1, "2"], r"not be readable as list\[int\]"),
        (dict[str, int], {"a": "b"}, "not be readable as"),
    ],
)
# pydantic tells its users of a model that was made with the wrong types.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_state_that_could_not_be_read_again_is_not_stored(
    store: InMemoryStore, state_type: Any, state: Any, found: str
) -> None:
    """It fails where it is made, and the state before it stays."""
    states = StateStore(store, "orders", state_type)

    with pytest.raises(InvalidStateError, match=found):
        await states.put("o-1", state)
    assert await states.get("o-1") is None


@pytest.mark.parametrize("state_type", [OrderView, OrderStruct, OrderModel])
@pytest.mark.parametrize("state_json", [b'{"items": []}', b'{"total": "x"}', b"[]", b"null", b"{"])
async def test_a_stored_state_that_does_not_fit_the_type_says_so(
    store: InMemoryStore, state_type: type[Any], state_json: bytes
) -> None:
    """The message names the store, the type and the key, on one line."""
    await store.states.put("orders", "o-1", state_json)
    states = StateStore(store, "orders", state_type)

    with pytest.raises(StateTypeError, match=f"'orders' is no {state_type.__name__}: under the key 'o-1', "):
        await states.get("o-1")
    with pytest.raises(StateTypeError, match="under the key 'o-1'"):
        [_ async for _ in states.items()]
    with pytest.raises(StateTypeError) as caught:
        states.decode(state_json)
    assert "\n" not in str(caught.value)


async def test_a_state_that_was_stored_before_a_field_came_has_its_default(store: InMemoryStore) -> None:
    """A new field with a default needs nothing else."""
    await store.states.put("orders", "o-1", b'{"total": 3}')

    assert await StateStore(store, "orders", OrderStruct).get("o-1") == OrderStruct(3)
