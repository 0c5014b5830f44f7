"""Every state of a type comes back equal."""

from dataclasses import dataclass
from datetime import UTC
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

from postbus.observers import StateStore
from postbus.stores.memory import InMemoryStore
from tests.observers.steps import OrderModel, OrderStruct, OrderView

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(texts, parts, max_size=4),
    max_leaves=20,
)
fields = st.fixed_dictionaries(
    {"total": numbers, "items": st.lists(texts), "paid_at": st.none() | st.datetimes(timezones=st.just(UTC))}
)


def through_json(state_type: Any, state: Any) -> Any:
    states: StateStore[Any] = StateStore(InMemoryStore(), "states", state_type)
    return states.decode(states.encode(state))


@given(st.dictionaries(texts, values, max_size=5))
def test_any_json_object_comes_back(state: dict[str, Any]) -> None:
    assert through_json(dict, state) == state


@given(st.lists(values, max_size=5))
def test_any_json_list_comes_back(state: list[Any]) -> None:
    assert through_json(list, state) == state


@given(numbers)
def test_any_number_comes_back(state: int) -> None:
    assert through_json(int, state) == state


@pytest.mark.parametrize("state_type", [OrderView, OrderStruct, OrderModel])
@given(values=fields)
def test_any_model_comes_back(state_type: type[Any], values: dict[str, Any]) -> None:
    """As a dataclass, a Struct or a pydantic model; the moment in it as a datetime."""
    state = state_type(**values)

    assert through_json(state_type, state) == state


@dataclass
class Line:
    """A part of a state, with a part of another kind."""

    order: OrderModel
    struct: OrderStruct


@given(first=fields, second=fields)
def test_models_of_all_kinds_may_contain_each_other(first: dict[str, Any], second: dict[str, Any]) -> None:
    state = [Line(OrderModel(**first), OrderStruct(**second))]

    assert through_json(list[Line], state) == state


class Waiting(msgspec.Struct, tag=True):
    """One stage of a saga."""

    since: int


class Paid(msgspec.Struct, tag=True):
    """The next one."""

    amount: int


@pytest.mark.parametrize("state", [Waiting(since=1), Paid(amount=2)])
def test_a_state_may_be_one_of_several_tagged_structs(state: Waiting | Paid) -> None:
    """A saga has a type for each of its stages."""
    assert through_json(Waiting | Paid, state) == state


class CamelModel(BaseModel):
    """A pydantic model that reads other names than it has, and refuses what it does not know."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True)

    order_total: int
    paid_in: tuple[int, ...] = Field(default=())

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        """Is written by model_dump and can't be read."""
        return self.order_total * 2


def test_a_pydantic_model_with_aliases_and_computed_fields_comes_back() -> None:
    """It is stored under the names that it reads, without what it computes."""
    state = CamelModel.model_validate({"orderTotal": 3, "paidIn": (1, 2)})

    assert through_json(CamelModel, state) == state
