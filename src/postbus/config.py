"""Settings: frozen values that refuse bad input when they are made."""

import enum
import math
import sys
from dataclasses import dataclass, field
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class Synchronous:
    """The checkpoint is written after every event: at most one is delivered twice after a crash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batched:
    """The checkpoint is written after so many events, or so many seconds after the first of them."""

    batch_size: int = 100
    max_delay: float = 5.0

    def __post_init__(self) -> None:
        check_whole_number("Batched.batch_size", self.batch_size, at_least=1)
        check_number("Batched.max_delay", self.max_delay, at_least=0.0)


class CheckpointMode:
    """How often a durable subscriber writes its checkpoint.

    >>> CheckpointMode.batched(batch_size=500)
    Batched(batch_size=500, max_delay=5.0)
    """

    @staticmethod
    def synchronous() -> Synchronous:
        """After every event."""
        return Synchronous()

    @staticmethod
    def batched(batch_size: int = 100, max_delay: float = 5.0) -> Batched:
        """After *batch_size* events, or *max_delay* seconds after the first of them."""
        return Batched(batch_size=batch_size, max_delay=max_delay)


AnyCheckpointMode = Synchronous | Batched


class InstanceMode(enum.Enum):
    """Whether a durable subscriber looks out for other instances of itself."""

    COORDINATED = "coordinated"
    """One active instance per subscriber id; the others stand by."""
    SINGLE_INSTANCE = "single_instance"
    """The user sees to it that there is just one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReliableDeliveryConfig:
    """How durable subscribers are served; all times in seconds.

    >>> ReliableDeliveryConfig(max_retries=5).catch_up_batch_size
    100
    """

    max_retries: int = 3
    initial_retry_delay: float = 1.0
    max_retry_delay: float = 60.0
    catch_up_batch_size: int = 100
    checkpoint_mode: AnyCheckpointMode = field(default_factory=Synchronous)
    instance_mode: InstanceMode = InstanceMode.COORDINATED
    gap_timeout: float = 5.0
    gap_policy: Literal["proof", "timeout"] = "proof"
    """Whether a number that is missing is passed when it is proven dead, or gap_timeout after it was seen."""
    ordering: Literal["stream", "global"] = "stream"
    """Whether events beyond a gap are delivered at once, in the order of each stream, or wait for it."""
    poll_interval: float = 1.0
    failover_timeout: float = 10.0
    """After so long without a sign of life from the active instance another one has taken over."""

    def __post_init__(self) -> None:
        check_whole_number("ReliableDeliveryConfig.max_retries", self.max_retries, at_least=0)
        check_number("ReliableDeliveryConfig.initial_retry_delay", self.initial_retry_delay, at_least=0.0)
        check_number("ReliableDeliveryConfig.max_retry_delay", self.max_retry_delay, at_least=0.0)
        check_whole_number("ReliableDeliveryConfig.catch_up_batch_size", self.catch_up_batch_size, at_least=1)
        check_checkpoint_mode("ReliableDeliveryConfig.checkpoint_mode", self.checkpoint_mode)
        if not isinstance(self.instance_mode, InstanceMode):
            raise InvalidConfigError(
                "ReliableDeliveryConfig.instance_mode", self.instance_mode, "an InstanceMode"
            )
        check_number("ReliableDeliveryConfig.gap_timeout", self.gap_timeout, at_least=0.0)
        check_choice("ReliableDeliveryConfig.gap_policy", self.gap_policy, "proof", "timeout")
        check_choice("ReliableDeliveryConfig.ordering", self.ordering, "stream", "global")
        check_timeout("ReliableDeliveryConfig.poll_interval", self.poll_interval)
        # Below it, an event loop that is busy for a moment would pass for a dead one.
        check_number("ReliableDeliveryConfig.failover_timeout", self.failover_timeout, at_least=1.0)

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy of durable subscribers that have none of their own."""
        return RetryPolicy(
            max_retries=self.max_retries,
            base_delay=self.initial_retry_delay,
            max_delay=self.max_retry_delay,
        )


def check_checkpoint_mode(name: str, mode: object) -> None:
    """Refuse what is no checkpoint mode."""
    if not isinstance(mode, AnyCheckpointMode):
        raise InvalidConfigError(name, mode, "CheckpointMode.synchronous() or CheckpointMode.batched(…)")


def check_choice(name: str, value: object, *choices: str) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise InvalidConfigError(name, value, " or ".join(repr(choice) for choice in choices))


def check_number(name: str, value: float, *, at_least: float, at_most: float = math.inf) -> None:
    """Refuse what is not a finite number between the two bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN is not between any two, and an int may be larger than every float.
    if not is_number or not at_least <= value <= min(at_most, sys.float_info.max):
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
