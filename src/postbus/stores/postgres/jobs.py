"""Calls that wait for their drafts to be stored."""

from collections.abc import Iterator, Sequence

from postbus.events import Draft
from postbus.ports import OnStored
from postbus.stores.postgres.inserts import size_of


class Job:
    """The drafts of one call, to be stored all or none."""

    __slots__ = ("drafts", "give_up_at", "is_settled", "may_be_stored", "on_stored", "size")

    def __init__(self, drafts: Sequence[Draft], on_stored: OnStored, *, may_be_stored: bool = False) -> None:
        self.drafts, self.on_stored = drafts, on_stored
        self.size = size_of(drafts)
        self.is_settled = False
        # They were sent once, and the answer got lost.
        self.may_be_stored = may_be_stored
        # Set when it is found that somebody else's transaction holds what it needs.
        self.give_up_at: float | None = None

    def names(self) -> Iterator[str]:
        """The streams and given ids that nobody else may write at the same time."""
        for draft in self.drafts:
            if draft.stream_id is not None:
                yield f"stream {draft.stream_id!r}"
            if draft.is_idempotent:
                yield f"event id {draft.id!r}"
