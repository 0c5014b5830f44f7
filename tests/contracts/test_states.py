"""ports.StateTable: a state is what was put last under its key."""

import pytest

from postbus.ports import Store


class TestStateTable:
    async def test_a_key_that_was_never_put_has_no_state(self, store: Store) -> None:
        """None, which is no state, and not the state null."""
        assert await store.states.get("orders", "42") is None
        assert await store.states.items("orders", "", 10) == []

    @pytest.mark.parametrize("state", [b"null", b"{}", b'"\xe2\x98\x83"', b"[" + b"1," * 50_000 + b"1]"])
    async def test_a_state_reads_back_byte_by_byte(self, store: Store, state: bytes) -> None:
        """Whatever JSON it is, also after the store was closed."""
        await store.states.put("orders", "42", state)
        await store.close()
        await store.open()

        assert await store.states.get("orders", "42") == state
        assert await store.states.items("orders", "", 10) == [("42", state)]

    async def test_the_latest_state_replaces_the_one_before(self, store: Store) -> None:
        """There is one for each key."""
        await store.states.put("orders", "42", b"1")
        await store.states.put("orders", "42", b"2")

        assert await store.states.items("orders", "", 10) == [("42", b"2")]

    async def test_none_deletes_the_state(self, store: Store) -> None:
        """Idempotent, and it can be put again."""
        await store.states.put("orders", "42", b"1")
        await store.states.put("orders", "42", None)
        await store.states.put("orders", "42", None)
        deleted = await store.states.get("orders", "42")
        await store.states.put("orders", "42", b"2")

        assert deleted is None
        assert await store.states.get("orders", "42") == b"2"

    async def test_state_stores_share_no_keys(self, store: Store) -> None:
        """The same key under another name is another state, however the two are put together."""
        for name, key in [("a", "bc"), ("ab", "c"), ("A", "bc"), ("a", "BC")]:
            await store.states.put(name, key, f'"{name}-{key}"'.encode())
        await store.states.put("ab", "c", None)

        assert await store.states.items("a", "", 10) == [("BC", b'"a-BC"'), ("bc", b'"a-bc"')]
        assert await store.states.get("A", "bc") == b'"A-bc"'
        assert await store.states.get("ab", "c") is None

    async def test_items_come_in_the_order_of_their_keys_page_by_page(self, store: Store) -> None:
        """By code point, above the last key that was seen, and not more than asked for."""
        keys = ["10", "2", "B", "a", "z", "é", "☃", "🎉"]
        for key in reversed(keys):
            await store.states.put("orders", key, b"1")
        pages = [await store.states.items("orders", after, 3) for after in ("", "B", "é", "🎉")]

        assert [[key for key, _ in page] for page in pages] == [keys[:3], keys[3:6], keys[6:], []]

    async def test_a_page_may_begin_at_a_key_that_is_gone(self, store: Store) -> None:
        """Deleting while reading skips nothing."""
        for key in "abd":
            await store.states.put("orders", key, b"1")
        await store.states.put("orders", "b", None)

        assert [key for key, _ in await store.states.items("orders", "b", 10)] == ["d"]
