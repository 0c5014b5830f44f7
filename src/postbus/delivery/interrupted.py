"""Attempts that ended with their process: what the story of their event says of them."""

from postbus.events import Event

INTERRUPTED = "interrupted: the process ended before this attempt did"
INTERRUPTED_AMONG_OTHERS = (
    "interrupted: the process ended before this attempt did, or before it began: several were under way"
)


def is_interruption(error: str) -> bool:
    """Whether this tells of an attempt that ended with its process."""
    return error in (INTERRUPTED, INTERRUPTED_AMONG_OTHERS)


def is_in_doubt(event: Event) -> bool:
    """Whether the last attempt may never have begun, or have ended well: another may be the guilty one."""
    return event.errors[-1:] == [INTERRUPTED_AMONG_OTHERS]
