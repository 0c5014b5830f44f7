"""What stands in the way of goals that are not reached, kept by hand: the page of results shows it."""

from collections.abc import Mapping

# By the name of the goal; with the figures that show it.
LIMITS: Mapping[str, str] = {}
