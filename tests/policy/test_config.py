"""Settings of durable subscribers: their defaults, and what they refuse."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from postbus.config import Batched, CheckpointMode, InstanceMode, ReliableDeliveryConfig, RetryPolicy
from postbus.errors import InvalidConfigError


def test_the_defaults_are_those_of_the_design() -> None:
    """What a subscriber gets when nobody says anything."""
    assert dataclasses.asdict(ReliableDeliveryConfig()) == {
        "max_retries": 3,
        "initial_retry_delay": 1.0,
        "max_retry_delay": 60.0,
        "catch_up_batch_size": 100,
        "checkpoint_mode": {},
        "instance_mode": InstanceMode.COORDINATED,
        "gap_timeout": 5.0,
        "gap_policy": "proof",
        "ordering": "stream",
        "poll_interval": 1.0,
        "failover_timeout": 10.0,
    }
    assert ReliableDeliveryConfig().checkpoint_mode == CheckpointMode.synchronous()


def test_the_retry_policy_of_subscribers_comes_from_their_settings() -> None:
    """Its three settings, and the usual growth."""
    config = ReliableDeliveryConfig(max_retries=7, initial_retry_delay=0.5, max_retry_delay=9.0)

    assert config.retry == RetryPolicy(max_retries=7, base_delay=0.5, max_delay=9.0)


@pytest.mark.parametrize("max_delay", [0, 0.0, 0.001, 5, 1e9])
def test_any_delay_of_a_batch_is_accepted(max_delay: float) -> None:
    """Also none at all, and a millisecond."""
    assert CheckpointMode.batched(max_delay=max_delay).max_delay == max_delay


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "100", None])
def test_a_batch_of_no_size_is_refused(batch_size: Any) -> None:
    """A batch is a whole number of events, one or more."""
    with pytest.raises(InvalidConfigError, match="batch_size") as caught:
        CheckpointMode.batched(batch_size=batch_size)

    assert caught.value.expected == "a whole number of 1 or more"


@pytest.mark.parametrize("max_delay", [-0.001, math.inf, math.nan, 10**400, "5", None, True])
def test_a_delay_that_is_no_time_is_refused(max_delay: Any) -> None:
    """Seconds, zero or more, that come to an end."""
    with pytest.raises(InvalidConfigError, match="max_delay"):
        CheckpointMode.batched(max_delay=max_delay)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_retries": -1},
        {"max_retries": 2.0},
        {"initial_retry_delay": -1.0},
        {"initial_retry_delay": math.nan},
        {"max_retry_delay": math.inf},
        {"catch_up_batch_size": 0},
        {"checkpoint_mode": "batched"},
        {"checkpoint_mode": CheckpointMode},
        {"checkpoint_mode": None},
        {"instance_mode": "coordinated"},
        {"instance_mode": None},
        {"gap_timeout": -0.1},
        {"gap_timeout": "5"},
        {"poll_interval": 0},
        {"poll_interval": -1},
        {"poll_interval": math.inf},
    ],
    ids=str,
)
def test_a_setting_out_of_its_range_is_refused_by_its_name(settings: dict[str, Any]) -> None:
    """The error names the setting, shows what was found and says what is expected."""
    (name,) = settings
    with pytest.raises(InvalidConfigError) as caught:
        ReliableDeliveryConfig(**settings)

    assert caught.value.name == f"ReliableDeliveryConfig.{name}"
    assert caught.value.found == settings[name] or math.isnan(settings[name])
    assert caught.value.expected in str(caught.value)


@pytest.mark.parametrize("make", [ReliableDeliveryConfig, Batched, CheckpointMode.synchronous])
def test_settings_are_frozen_and_equal_by_value(make: Callable[[], Any]) -> None:
    """Two buses can share them."""
    assert make() == make()
    assert hash(make()) == hash(make())
    for field in dataclasses.fields(make()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(make(), field.name, 1)
