"""How large a page of the log may be."""

from postbus.errors import StoreBusyError, StoreError, StoreUnavailableError
from postbus.stores.postgres.translation import translate

# As many as read_page has room for.
_MOST_EVENTS = 1000
# Of JSON; decoded it takes several times as much.
_MOST_BYTES = 8 * 1024 * 1024


class PageSize:
    """Becomes smaller when a page can't be read in time, so that a slow link is not stuck for ever."""

    def __init__(self) -> None:
        self._most = _MOST_EVENTS

    def fit(self, limit: int) -> tuple[int, int]:
        """At most so many events, and no more after so many bytes."""
        return max(0, min(limit, self._most)), _MOST_BYTES * self._most // _MOST_EVENTS

    def note_failure(self, error: BaseException) -> None:
        """Half of it next time, if it may be that the page was too large."""
        known = error if isinstance(error, StoreError) else translate(error)
        if isinstance(known, (StoreBusyError, StoreUnavailableError)):
            self._most = max(1, self._most // 2)

    def note_full(self) -> None:
        """A page of this size could be read: try a little more. (One that was not full proves nothing.)"""
        if self._most < _MOST_EVENTS:
            self._most = min(_MOST_EVENTS, self._most + self._most // 8 + 1)
