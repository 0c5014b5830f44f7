"""States of projections and sagas, in memory."""

from postbus.stores.memory.state import State


class InMemoryStateTable:
    """Fulfils ports.StateTable."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def get(self, store_name: str, key: str) -> bytes | None:
        """The state, as JSON."""
        self._state.check_open()
        return self._state.states.get(store_name, {}).get(key)

    async def put(self, store_name: str, key: str, state_json: bytes | None) -> None:
        """Replace it; None deletes it."""
        self._state.check_open()
        put_state(self._state, store_name, key, state_json)

    async def items(self, store_name: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """At most *limit* keys above *after* with their states, in the order of the keys."""
        self._state.check_open()
        states = self._state.states.get(store_name, {})
        return [(key, states[key]) for key in sorted(key for key in states if key > after)[:limit]]


def put_state(state: State, store_name: str, key: str, state_json: bytes | None) -> None:
    """Replace a state; None deletes it."""
    if state_json is None:
        state.states.get(store_name, {}).pop(key, None)
    else:
        state.states.setdefault(store_name, {})[key] = state_json
