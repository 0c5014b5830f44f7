"""Settings: frozen values that refuse bad input when they are made."""

import math
from dataclasses import dataclass

from postbus.errors import InvalidConfigError

DEFAULT_HANDLER_TIMEOUT = 30.0
DEFAULT_SHUTDOWN_TIMEOUT = 30.0
DEFAULT_MAX_PAYLOAD_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """When to try again, in seconds; *jitter* is the fraction by which a delay may vary.

    >>> RetryPolicy(max_retries=5).base_delay
    1.0
    """

    max_retries: int = 3
    base_delay: float = 1.0
    max_delay: float = 30.0
    backoff_multiplier: float = 2.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        check_whole_number("RetryPolicy.max_retries", self.max_retries, at_least=0)
        check_number("RetryPolicy.base_delay", self.base_delay, at_least=0.0)
        check_number("RetryPolicy.max_delay", self.max_delay, at_least=0.0)
        check_number("RetryPolicy.backoff_multiplier", self.backoff_multiplier, at_least=1.0)
        check_number("RetryPolicy.jitter", self.jitter, at_least=0.0, at_most=1.0)


def check_number(name: str, value: float, *, at_least: float, at_most: float = math.inf) -> None:
    """Refuse what is not a finite number between the two bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not at_least <= value <= at_most:
        bounds = f"of {at_least:g} or more" if at_most == math.inf else f"from {at_least:g} to {at_most:g}"
        raise InvalidConfigError(name, value, f"a finite number {bounds}")


def check_whole_number(name: str, value: int, *, at_least: int) -> None:
    """Refuse what is not a whole number of *at_least* or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidConfigError(name, value, f"a whole number of {at_least} or more")


def check_timeout(name: str, value: float) -> None:
    """Refuse what is not a positive, finite number of seconds."""
    check_number(name, value, at_least=0.0)
    if value == 0:
        raise InvalidConfigError(name, value, "more than 0 seconds")
