"""What a handler has raised: in a string for its dead letter, and as a traceback for the log."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from postbus.delivery.handler_threads import goes_on_in_thread

logger = logging.getLogger("postbus")

_LONGEST_ERROR = 10_000
# One of several in a group: none must hide the others.
_LONGEST_MEMBER = 1_000
# Of what one traceback tells: far more than any log shows.
_MOST_ERRORS = 1_000
_DEEPEST_GROUP = 50


def warn_of(error: BaseException | None, message: str, *values: object, extra: Mapping[str, object]) -> None:
    """Log a warning with the traceback of what a handler has raised, if there is one that can be shown."""
    shown = error if error is not None and _can_be_shown(error) else None
    logger.warning(message, *values, exc_info=shown, extra=extra)


def _can_be_shown(error: BaseException) -> bool:
    """Whether its traceback ends and can be written: Python follows groups by recursion, in a circle too."""
    followed = {id(error)}
    waiting = [(error, 0)]
    for _ in range(_MOST_ERRORS):
        if not waiting:
            return True
        each, depth = waiting.pop()
        if not _can_be_encoded(each):
            return False
        for related in (each.__cause__, each.__context__):
            if related is not None and id(related) not in followed:
                followed.add(id(related))
                waiting.append((related, depth))
        if isinstance(each, BaseExceptionGroup):
            if depth == _DEEPEST_GROUP or type(each).exceptions is not BaseExceptionGroup.exceptions:
                return False
            waiting.extend((member, depth + 1) for member in each.exceptions)
    return not waiting


def _can_be_encoded(error: BaseException) -> bool:
    # What no file takes would cost the whole record: the description has it in other words.
    try:
        "".join([str(error), *getattr(error, "__notes__", ())]).encode()
    except Exception:
        return False
    return True


def timeout_error(timeout: float, ended_with: BaseException | None = None) -> TimeoutError:
    """The error of an attempt that was cut off, and ended with this where it was at that moment."""
    end = "goes on: a thread can't be cancelled" if goes_on_in_thread(ended_with) else "was cancelled"
    error = TimeoutError(f"handler took longer than {timeout:g} s and {end}")
    error.__cause__ = ended_with
    return error


def describe_error(error: BaseException) -> str:
    """The type and message of an error, in a group also those of its members: one string of a dead letter."""
    if not isinstance(error, BaseExceptionGroup):
        return _shorten(_describe_alone(error), _LONGEST_ERROR)
    story = ""
    for piece in _pieces_of_group(error):
        story += piece
        if len(story) > _LONGEST_ERROR:
            return f"{story[:_LONGEST_ERROR]}… (and more)"
    return story


def _pieces_of_group(group: BaseExceptionGroup[Any]) -> Iterator[str]:
    """Its description bit by bit, for a reader who stops when it is enough."""
    yield _describe_member(group)
    # Without recursion: groups may be deeper than the stack, and one of the user's own may be in itself.
    open_groups, before = [_members(group)], " ["
    while open_groups:
        member = next(open_groups[-1], None)
        if member is None:
            open_groups.pop()
            if before == "; ":
                yield "]"
            before = "; "
            continue
        yield before + _describe_member(member)
        before = "; "
        if isinstance(member, BaseExceptionGroup):
            open_groups.append(_members(member))
            before = " ["


def _members(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    with contextlib.suppress(Exception):
        yield from group.exceptions


def _describe_member(error: BaseException) -> str:
    # Within a group in one line, so that it can be seen where it begins and ends.
    return " ".join(_shorten(_describe_alone(error), _LONGEST_MEMBER).split())


def _describe_alone(error: BaseException) -> str:
    name = type(error).__qualname__
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be shown: __str__ raised)"
    text = f"{name}: {message}" if message else name
    # Any store must be able to keep it: no lone surrogates, no NUL, no end without end.
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
