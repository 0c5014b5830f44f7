"""What the writer has to do for its callers."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from postbus.errors import PostbusError, StoreError
from postbus.events import Draft, EventStatus
from postbus.ports import OnStored

T = TypeVar("T")


class TransactionLostError(Exception):
    """A job has made SQLite undo the whole transaction; it will not do so when it is run again."""


class Insert:
    """Drafts to store, all or none."""

    __slots__ = (
        "drafts", "error", "has_streams", "is_plain", "on_stored", "sequences", "size", "unrouted_status",
        "versions",
    )  # fmt: skip

    def __init__(self, drafts: Sequence[Draft], on_stored: OnStored) -> None:
        self.drafts, self.on_stored = drafts, on_stored
        self.is_plain = True
        """Whether every draft is new for certain and uses only the columns that all events use."""
        self.has_streams = False
        self.size = 0
        """Bytes of payload."""
        for draft in drafts:
            self.size += len(draft.payload_json)
            if draft.stream_id is not None:
                self.has_streams = True
                self.is_plain = False
            elif (
                draft.is_idempotent
                or draft.actor_id is not None
                or draft.correlation_id is not None
                or draft.causation_id is not None
                or draft.schema_version is not None
            ):
                self.is_plain = False
        self.sequences: Sequence[int | None] = ()
        self.versions: Sequence[int | None] = ()
        self.unrouted_status: EventStatus | None = None
        """With which status drafts without one were stored, unless they are all plain."""
        self.error: StoreError | None = None

    def settle(self) -> None:
        """Tell the publisher, in the event loop."""
        if self.error is None:
            self.on_stored(self.sequences, self.versions, None)
        else:
            self.on_stored((), (), self.error)


class Call(Generic[T]):
    """Any other piece of work inside the transaction; if it raises, it has written nothing.

    *on_done* is called in the event loop once the work is durable, even if nobody waits for it any more.
    What need not wait for the disk survives the process all the same, and may be lost in a power cut.
    """

    __slots__ = ("_future", "_on_done", "_result", "_run", "error", "waits_for_disk")

    def __init__(
        self,
        run: Callable[[sqlite3.Connection], T],
        future: "asyncio.Future[T]",
        on_done: Callable[[], None] | None = None,
        waits_for_disk: bool = True,
    ) -> None:
        self._run, self._future, self._on_done = run, future, on_done
        self.waits_for_disk = waits_for_disk
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
        if self.error is None and self._on_done is not None:
            self._on_done()
        if self._future.done():
            return
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self._result)  # type: ignore[arg-type]


Job = Insert | Call[object]
