"""Moments as SQLite files have them: many at once as one by one."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given
from hypothesis import strategies as st

from postbus.stores.sqlite.rows import moment_to_text, moments_to_text


class _FakeDatetime(datetime):
    """What libraries for tests give instead of the time of the machine."""


_NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
_EAST = _NOON.replace(tzinfo=timezone(timedelta(hours=2)))
_MOMENTS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))]))


@given(st.lists(_MOMENTS | st.just(_FakeDatetime(2026, 1, 10, 12, 0, 0, 5, UTC)), max_size=8))
# As long in all as if each had its microseconds and was in UTC.
@example([_EAST] * 5 + [_EAST.replace(microsecond=5)] * 2)
@example([_NOON, _NOON.replace(microsecond=5)])
def test_many_moments_are_written_as_each_of_them_is(moments: list[datetime]) -> None:
    assert moments_to_text(moments) == list(map(moment_to_text, moments))
