"""How long to wait after the n-th failure, and when to give up."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from postbus.config import RetryPolicy
from postbus.errors import InvalidConfigError

# The largest whole number up to which every one is a float: a larger exponent could not be one.
_LARGEST_EXPONENT = 2**53
# Of a number that is a float.
_LARGEST_LOGARITHM = 709.0
_MORE_IN_DOUBT = 3
_FIELD_NAMES = tuple(field.name for field in dataclasses.fields(RetryPolicy))


def retry_delay(policy: RetryPolicy, failure_count: int, noise: float) -> float:
    """Seconds to wait after the latest of *failure_count* failures; *noise* is in [-1, 1].

    >>> [retry_delay(RetryPolicy(), failure_count, noise=0) for failure_count in (1, 2, 3, 99)]
    [1.0, 2.0, 4.0, 30.0]
    """
    if failure_count < 1 or policy.base_delay == 0:
        return 0.0
    exponent = min(failure_count - 1, _LARGEST_EXPONENT)
    try:
        delay = policy.base_delay * float(policy.backoff_multiplier) ** exponent
    except OverflowError:
        # The growth is no float; the delay may be one, if the first was next to nothing.
        logarithm = math.log(policy.base_delay) + math.log(policy.backoff_multiplier) * exponent
        delay = math.exp(min(logarithm, _LARGEST_LOGARITHM))
    return min(delay, policy.max_delay) * (1.0 + policy.jitter * noise)


def is_exhausted(policy: RetryPolicy, failure_count: int) -> bool:
    """Whether this many failed attempts make a dead letter.

    >>> is_exhausted(RetryPolicy(max_retries=3), 3), is_exhausted(RetryPolicy(max_retries=3), 4)
    (False, True)
    """
    return failure_count > policy.max_retries


def is_used_up(policy: RetryPolicy, attempt_count: int, *, is_in_doubt: bool) -> bool:
    """Whether an event whose last attempt ended with its process gets no further one.

    In doubt, which is where it was not alone in that process, it gets some more: an innocent one goes
    through, and one that ends its process each time still comes to an end.

    >>> is_used_up(RetryPolicy(max_retries=0), 1, is_in_doubt=False)
    True
    >>> [is_used_up(RetryPolicy(max_retries=0), attempts, is_in_doubt=True) for attempts in (1, 3, 4)]
    [False, False, True]
    """
    return is_exhausted(policy, attempt_count - (_MORE_IN_DOUBT if is_in_doubt else 0))


def override_policy(base: RetryPolicy, override: RetryPolicy | Mapping[str, float] | None) -> RetryPolicy:
    """The policy of one subscription: a whole one replaces *base*, a mapping only its fields.

    >>> override_policy(RetryPolicy(max_delay=5.0), {"max_retries": 9})
    RetryPolicy(max_retries=9, base_delay=1.0, max_delay=5.0, backoff_multiplier=2.0, jitter=0.1)
    """
    if override is None:
        return base
    if isinstance(override, RetryPolicy):
        return override
    if not isinstance(override, Mapping):
        raise InvalidConfigError("retry", override, "a RetryPolicy or a dict of its fields")
    for name in override:
        if name not in _FIELD_NAMES:
            raise InvalidConfigError("retry", name, f"only the fields {', '.join(_FIELD_NAMES)}")
    return RetryPolicy(**{**dataclasses.asdict(base), **override})


def most_permissive(policies: Sequence[RetryPolicy]) -> RetryPolicy:
    """One policy for an event that several handlers share; at least one policy is needed.

    >>> most_permissive([RetryPolicy(max_retries=1), RetryPolicy(max_retries=7, base_delay=9.0)])
    RetryPolicy(max_retries=7, base_delay=1.0, max_delay=30.0, backoff_multiplier=2.0, jitter=0.1)
    """
    return RetryPolicy(
        max_retries=max(policy.max_retries for policy in policies),
        base_delay=min(policy.base_delay for policy in policies),
        max_delay=max(policy.max_delay for policy in policies),
        backoff_multiplier=max(policy.backoff_multiplier for policy in policies),
        jitter=max(policy.jitter for policy in policies),
    )
