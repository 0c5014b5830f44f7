"""Does "order.*" match "order.placed"?"""

from postbus.errors import InvalidPatternError
from postbus.policy.names import find_name_flaw


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
