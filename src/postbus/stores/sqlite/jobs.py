"""What the writer has to do for its callers."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from postbus.errors import PostbusError, StoreError
from postbus.events import Draft
from postbus.ports import OnStored

T = TypeVar("T")


class Insert:
    """Drafts to store, all or none."""

    __slots__ = ("drafts", "error", "is_plain", "on_stored", "sequences", "size")

    def __init__(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        self.drafts, self.on_stored = drafts, on_stored
        self.is_plain = True
        """Whether every draft is new for certain."""
        self.size = 0
        """Bytes of payload."""
        for draft in drafts:
            self.size += len(draft.payload_json)
            if draft.is_idempotent:
                self.is_plain = False
        self.sequences: Sequence[int | None] = ()
        self.error: StoreError | None = None

    def settle(self) -> None:
        """Tell the publisher, in the event loop."""
        self.on_stored(() if self.error else self.sequences, self.error)


class Call(Generic[T]):
    """Any other piece of work inside the transaction; it raises before it writes, or not at all."""

    __slots__ = ("_future", "_result", "_run", "error")

    def __init__(self, run: Callable[[sqlite3.Connection], T], future: "asyncio.Future[T]") -> None:
        self._run, self._future = run, future
        self._result: T | None = None
        self.error: PostbusError | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Do it; an answer such as EventNotFoundError is this caller's alone."""
        self.error = None
        try:
            self._result = self._run(connection)
        except PostbusError as error:
            self.error = error

    def settle(self) -> None:
        """Tell the caller, in the event loop."""
        if self._future.done():
            return
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self._result)  # type: ignore[arg-type]


Job = Insert | Call[object]
