"""Lists of numbers as text: to write them otherwise the driver asks the server for 20 ms how to."""

from collections.abc import Iterable


def to_literal(numbers: Iterable[int | None]) -> str:
    """As PostgreSQL writes an array; the statement casts it.

    >>> to_literal([1, None, 3])
    '{1,NULL,3}'
    """
    return "{" + ",".join("NULL" if number is None else str(number) for number in numbers) + "}"
