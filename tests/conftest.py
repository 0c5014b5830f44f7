"""Settings shared by all tests; fixtures live in the conftest.py of the folder that uses them."""

import os

from hypothesis import settings

# A loaded machine makes single examples slow without making them wrong.
settings.register_profile("default", deadline=None)
# The same examples on every run, so that a red build is red again on a developer's machine.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")
