"""Help for the tests of programs that use postbus."""

from postbus.testing.clock import ManualClock

__all__ = ["ManualClock"]
