"""Patterns of event types, and parts, as PostgreSQL matches them."""

import re
from functools import lru_cache

from postbus.events import Part
from postbus.ports import WantedEvents

# What has a meaning in its regular expressions; a backslash before a letter or digit would get one.
_SPECIAL = re.compile(r"([!-/:-@\[-^`{-~])")
_SEGMENT = r"[^.]*"


def type_condition(wanted: WantedEvents) -> tuple[list[str], str | None]:
    """Exact types, and a regular expression for the patterns that stand for many types."""
    types, expression = _make_condition(tuple(wanted.patterns))
    return list(types), expression


def part_condition(wanted: WantedEvents, part: Part) -> tuple[list[str] | None, str | None, int, int]:
    """The same and the part; no types at all mean every type."""
    if "*" in wanted.patterns:
        return None, None, part.index, part.count
    return *type_condition(wanted), part.index, part.count


@lru_cache(maxsize=256)
def _make_condition(patterns: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    types = tuple(pattern for pattern in patterns if "*" not in pattern)
    many = [_expression(pattern) for pattern in patterns if "*" in pattern]
    return types, f"^({'|'.join(many)})$" if many else None


def _expression(pattern: str) -> str:
    if pattern == "*":
        return ".*"
    segments = pattern.split(".")
    return r"\.".join(_SEGMENT if segment == "*" else _SPECIAL.sub(r"\\\1", segment) for segment in segments)
