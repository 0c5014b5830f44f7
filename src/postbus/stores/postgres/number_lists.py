"""Lists of numbers as text: to write them otherwise the driver asks the server for 20 ms how to."""

from collections.abc import Iterable


def to_literal(numbers: Iterable[int | None]) -> str:
    """As PostgreSQL writes an array; the statement casts it, and takes 0 for NULL where one may be missing.

    >>> to_literal([1, None, 3])
    '{1,0,3}'
    """
    # With array_nulls off, the word NULL is no NULL but a text.
    return "{" + ",".join(str(number or 0) for number in numbers) + "}"
