"""ports.Clock: the real clock and the manual one promise the same."""

from datetime import timedelta

import pytest

from postbus.clock import SystemClock
from postbus.ports import Clock
from postbus.testing import ManualClock


@pytest.fixture(params=["system", "manual"])
def any_clock(request: pytest.FixtureRequest) -> Clock:
    return SystemClock() if request.param == "system" else ManualClock(auto_advance=True)


class TestClock:
    async def test_now_is_aware_and_in_utc(self, any_clock: Clock) -> None:
        """Nobody has to guess the zone."""
        assert any_clock.now().utcoffset() == timedelta(0)

    async def test_a_sleep_takes_at_least_as_long_as_asked(self, any_clock: Clock) -> None:
        """By both ways of reading the time, give or take their resolution."""
        began_at, began = any_clock.now(), any_clock.monotonic()
        await any_clock.sleep(0.02)

        assert any_clock.monotonic() - began >= 0.019
        assert any_clock.now() - began_at >= timedelta(seconds=0.019)

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    async def test_a_sleep_of_no_length_returns(self, any_clock: Clock, seconds: float) -> None:
        """And the time does not go back."""
        began = any_clock.monotonic()
        await any_clock.sleep(seconds)

        assert any_clock.monotonic() >= began
