"""Help for the tests of programs that use postbus."""

from postbus.testing.clock import ManualClock
from postbus.testing.crashes import Crash, every_crash
from postbus.testing.doom import CRASH_POINTS, CrashPoint, SimulatedCrashError
from postbus.testing.observer import RecordingObserver
from postbus.testing.published import assert_not_published, assert_published, published

__all__ = [
    "CRASH_POINTS",
    "Crash",
    "CrashPoint",
    "ManualClock",
    "RecordingObserver",
    "SimulatedCrashError",
    "assert_not_published",
    "assert_published",
    "every_crash",
    "published",
]
