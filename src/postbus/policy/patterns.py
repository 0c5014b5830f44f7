"""Does "order.*" match "order.placed"?"""

from collections.abc import Sequence

from postbus.errors import InvalidPatternError
from postbus.events import Part
from postbus.policy.names import find_name_flaw

# Types with ids inside ("order.123.shipped") must not fill the memory.
_MOST_KNOWN_TYPES = 10_000


def check_pattern(pattern: object) -> str:
    """The pattern as a plain str; InvalidPatternError unless it is a dotted name with "*" segments.

    >>> check_pattern("order.*.shipped")
    'order.*.shipped'
    >>> check_pattern("order.pla*")
    Traceback (most recent call last):
    ...
    postbus.errors.InvalidPatternError: pattern 'order.pla*' has "*" as part of the segment 'pla*'; ...
    """
    if not isinstance(pattern, str):
        raise InvalidPatternError(pattern, f"is of type {type(pattern).__qualname__}")
    flaw = find_name_flaw(pattern)
    if flaw is not None:
        raise InvalidPatternError(pattern, flaw)
    for segment in pattern.split("."):
        if "*" in segment and segment != "*":
            raise InvalidPatternError(pattern, f'has "*" as part of the segment {segment!r}')
    return str.__str__(pattern)


def matches(pattern: str, event_type: str) -> bool:
    """Whether a checked pattern matches; "*" is exactly one segment, a lone "*" is everything.

    >>> matches("user.*", "user.created"), matches("user.*", "user.a.b"), matches("*", "user.a.b")
    (True, False, True)
    """
    if pattern == "*":
        return True
    if "*" not in pattern:
        return pattern == event_type
    wanted, found = pattern.split("."), event_type.split(".")
    if len(wanted) != len(found):
        return False
    for wanted_segment, segment in zip(wanted, found, strict=True):
        if wanted_segment != segment and wanted_segment != "*":
            return False
    return True


class TypeFilter:
    """Whether an event type matches one of some checked patterns; remembers what it was asked.

    With *part* it stands for the events of those types that are in it.

    >>> is_wanted = TypeFilter(["order.*", "user.created"])
    >>> is_wanted("order.placed"), is_wanted("user.deleted")
    (True, False)
    """

    def __init__(self, patterns: Sequence[str], part: Part | None = None) -> None:
        self.patterns, self.part = tuple(patterns), part
        self._known: dict[str, bool] = {}

    def __call__(self, event_type: str, /) -> bool:
        """Whether this type is wanted."""
        found = self._known.get(event_type)
        if found is None:
            if len(self._known) >= _MOST_KNOWN_TYPES:
                self._known.clear()
            found = self._known[event_type] = any(matches(pattern, event_type) for pattern in self.patterns)
        return found


def type_filter(patterns: Sequence[str], part: Part | None = None) -> TypeFilter | None:
    """What a reader asks of the log; None if every event will do."""
    return None if "*" in patterns and part is None else TypeFilter(patterns, part)
