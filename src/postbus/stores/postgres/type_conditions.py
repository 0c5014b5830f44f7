"""Patterns of event types as PostgreSQL matches them."""

import re
from functools import lru_cache

from postbus.ports import WantedTypes

# What has a meaning in its regular expressions; a backslash before a letter or digit would get one.
_SPECIAL = re.compile(r"([!-/:-@\[-^`{-~])")
_SEGMENT = r"[^.]*"


def type_condition(wanted: WantedTypes) -> tuple[list[str], str | None]:
    """Exact types, and a regular expression for the patterns that stand for many types."""
    types, expression = _make_condition(tuple(wanted.patterns))
    return list(types), expression


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
