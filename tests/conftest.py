"""Settings shared by all tests; fixtures live in the conftest.py of the folder that uses them."""

import os
import signal

from hypothesis import settings

# A loaded machine makes single examples slow without making them wrong.
settings.register_profile("default", deadline=None)
# The same examples on every run, so that a red build is red again on a developer's machine.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A test run in the background inherits a SIGINT that is ignored, and so would every child that
# a test wants to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
