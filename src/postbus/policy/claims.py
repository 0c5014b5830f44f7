"""How many rows of the outbox a worker should have ahead of its handlers."""

# Long enough to ask for more meanwhile, and so short that no other worker is idle while rows wait here.
_SECONDS_AHEAD = 0.1
_MOST_AHEAD = 500


def rows_ahead(begun_count: int, seconds: float) -> int:
    """So many, if *begun_count* handlers began within *seconds*.

    >>> rows_ahead(20, seconds=1.0), rows_ahead(0, seconds=9.0), rows_ahead(100, seconds=0.01)
    (2, 1, 500)
    """
    if seconds <= 0:
        return _MOST_AHEAD
    return max(1, round(min(_MOST_AHEAD, begun_count / seconds * _SECONDS_AHEAD)))


def room_for(waiting_count: int, ahead: int, idle_count: int) -> int:
    """How many rows to ask for: none as long as half of those that should be ahead still wait.

    >>> room_for(3, ahead=4, idle_count=0), room_for(2, ahead=4, idle_count=0)
    (0, 2)
    >>> room_for(0, ahead=1, idle_count=10)
    11
    """
    missing = ahead + idle_count - waiting_count
    return missing if waiting_count <= ahead // 2 else 0
