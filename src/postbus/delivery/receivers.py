"""What takes the events of a durable subscriber: a handler, a stateful observer, a transactional function."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from postbus.delivery.delivered import Delivered
from postbus.delivery.handler_threads import HandlerThreads
from postbus.drafting import Drafts
from postbus.errors import InvalidHandlerError, InvalidStateError
from postbus.events import Draft, Event, StateWrite
from postbus.policy.names import find_id_flaw
from postbus.policy.upcasting import Upcasters
from postbus.ports import StatefulObserver, StateTable


@dataclass(frozen=True, slots=True)
class Effects:
    """What is written together with the checkpoint."""

    states: tuple[StateWrite, ...] = ()
    drafts: tuple[Draft, ...] = ()


class Receiver(Protocol):
    """Takes one event after another."""

    @property
    def easy_handler(self) -> Callable[[Event], Awaitable[object]] | None:
        """What may be called and awaited instead of receive(), if there is nothing else to do."""
        ...

    async def receive(self, event: Event) -> Effects | None:
        """One attempt; raises if it failed."""
        ...

    def note_unwritten(self, effects: Effects) -> None:
        """These effects count, and are written with the next checkpoint."""
        ...

    def forget_unwritten(self) -> None:
        """What was received since the last checkpoint is written, or will come again."""
        ...

    def alone(self, *, is_split: bool) -> "Receiver":
        """One for a part, with a memory of its own; *is_split*: other parts have theirs at the same time."""
        ...


class HandlerReceiver:
    """A function of the event, async or plain."""

    def __init__(
        self,
        handler: Callable[..., Awaitable[object] | object],
        delivered: Delivered,
        threads: HandlerThreads | None,
    ) -> None:
        self._handler, self._delivered, self._threads = handler, delivered, threads

    @property
    def easy_handler(self) -> Callable[[Event], Awaitable[object]] | None:
        """The function, if it is async."""
        if self._threads is not None:
            return None
        return self._handler if self._delivered.is_as_stored else self._call  # type: ignore[return-value]

    async def receive(self, event: Event) -> Effects | None:
        """Call the function; a plain one in a thread."""
        argument = self._delivered.of(event)
        if self._threads is None:
            await self._handler(argument)  # type: ignore[misc]
            return None
        async with self._threads.places:
            result = await self._threads.run(lambda: self._handler(argument))
        # A plain function may hand back a coroutine, as a lambda around an async function does.
        if inspect.isawaitable(result):
            await result
        return None

    def _call(self, event: Event) -> Awaitable[object]:
        return self._handler(self._delivered.of(event))  # type: ignore[return-value]

    def note_unwritten(self, effects: Effects) -> None:
        """A function has no effects of ours."""

    def forget_unwritten(self) -> None:
        """Nothing of it is remembered here."""

    def alone(self, *, is_split: bool) -> Self:  # noqa: ARG002
        """A function has no memory of ours."""
        return self


class TransactionalReceiver:
    """A function of the event and of the transaction in which the checkpoint is written."""

    def __init__(self, handler: Callable[..., Any], delivered: Delivered, *, is_async: bool) -> None:
        self._handler, self._delivered, self.is_async = handler, delivered, is_async

    def handle(self, event: Event, transaction: Any) -> Any:
        """Called by the store, inside the transaction; an async one is awaited there."""
        result = self._handler(self._delivered.of(event), transaction)
        if inspect.iscoroutine(result) and not self.is_async:
            # The transaction would be over before anybody could await it.
            result.close()
            raise InvalidHandlerError(
                "a handler that takes a transaction returned a coroutine, which nobody can await there; "
                "expected a plain function that has done its work when it returns"
            )
        return result

    def alone(self, *, is_split: bool) -> Self:  # noqa: ARG002
        """A function has no memory of ours."""
        return self


class StatefulReceiver:
    """A projection or a saga: its state and what it publishes are written with the checkpoint."""

    def __init__(
        self,
        observer: StatefulObserver,
        upcasters: Upcasters,
        drafts: Drafts,
        table: StateTable,
        *,
        is_split: bool = False,
    ) -> None:
        self._observer, self._upcasters, self._drafts, self._table = observer, upcasters, drafts, table
        self._states = observer.states
        self._is_same_database = self._states.table is table
        # Other parts write states at the same time: none of those that this one writes.
        self._is_split = is_split
        # States of events that were received and whose checkpoint is not written yet.
        self._unwritten: dict[str, bytes | None] = {}

    @property
    def easy_handler(self) -> None:
        """There is always a state to be looked up."""
        return

    async def receive(self, event: Event) -> Effects | None:
        """Let the observer react to the event."""
        event = self._upcasters.upcast(event)
        key = self._observer.state_key(event)
        if key is None:
            return None
        if (flaw := find_id_flaw(key)) is not None:
            raise InvalidStateError(
                self._states.name, f"the key {key!r} {flaw}", "a string of 1 to 255 printable characters"
            )
        if self._is_split and key != event.stream_id:
            raise InvalidStateError(
                self._states.name,
                f"the key {key!r} is not the id of the event's stream, {event.stream_id!r}",
                "one state for each stream where there are partitions, which would overwrite each other's "
                "states: let the key be event.stream_id, or subscribe with partitions=1",
            )
        reaction = await self._observer.react(await self._load(key), event)
        state_json = None if reaction.state is None else self._states.encode(reaction.state)
        drafts = tuple(self._drafts.draft_new(new, wait=False) for new in reaction.publish)
        if not self._is_same_database:
            # Two databases can't commit together: first the state, so that none is lost.
            await self._states.table.put(self._states.name, key, state_json)
            return Effects(drafts=drafts)
        return Effects((StateWrite(self._states.name, key, state_json),), drafts)

    def note_unwritten(self, effects: Effects) -> None:
        """The next event finds these states."""
        # Not when the observer returns: it may do so too late, and its event be tried again.
        for state in effects.states:
            self._unwritten[state.key] = state.state_json

    def forget_unwritten(self) -> None:
        """Read states from the database again."""
        self._unwritten.clear()

    def alone(self, *, is_split: bool) -> "StatefulReceiver":
        """Another one for the same observer."""
        return StatefulReceiver(self._observer, self._upcasters, self._drafts, self._table, is_split=is_split)

    async def _load(self, key: str) -> Any:
        if key in self._unwritten:
            state_json = self._unwritten[key]
        else:
            state_json = await self._states.table.get(self._states.name, key)
        return None if state_json is None else self._states.decode(state_json)
