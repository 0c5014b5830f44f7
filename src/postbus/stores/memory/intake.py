"""How drafts become stored events, whichever port they come through: all of them, or none."""

from collections.abc import Sequence

from postbus.errors import DuplicateEventIdError, WrongExpectedVersionError
from postbus.events import Draft, EventStatus
from postbus.stores.memory.records import Record
from postbus.stores.memory.state import State


def check_drafts(state: State, drafts: Sequence[Draft]) -> None:
    """Refuse them all for an id that is taken and was not given, or a stream that is at another version."""
    taken: set[str] = set()
    versions: dict[str, int] = {}
    for draft in drafts:
        if draft.id in taken or draft.id in state.by_id:
            if draft.is_idempotent:
                continue
            raise DuplicateEventIdError(
                f"an event with the id {draft.id!r} is stored already; nothing was stored; "
                "give an id_factory whose ids are unique"
            )
        taken.add(draft.id)
        if draft.stream_id is not None:
            version = versions.get(draft.stream_id, state.stream_versions.get(draft.stream_id, 0))
            if draft.expected_version not in (None, version):
                raise WrongExpectedVersionError(draft.stream_id, draft.expected_version, version)
            versions[draft.stream_id] = version + 1


def store_drafts(state: State, drafts: Sequence[Draft]) -> list[Record | None]:
    """Store drafts that were checked and tell the watchers; None for those that are stored already."""
    stored = [None if draft.id in state.by_id else state.insert(draft) for draft in drafts]
    new = [record for record in stored if record is not None]
    if new:
        state.announce_append()
    if any(record.status is EventStatus.PENDING for record in new):
        state.announce_pending()
    return stored
