"""What the outside may know of a worker: of a bus in this process, or of several in others."""

from typing import Literal, Protocol

import msgspec

from postbus import EventBus

Phase = Literal["starting", "started", "stopping"]

_GOOD_STATES = frozenset({"live", "catching_up", "standby", "paused"})


class SubscriptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A durable subscriber, as its handle tells."""

    id: str
    state: str
    reason: str | None
    checkpoint: int | None
    lag: int


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One bus in one process."""

    pid: int
    phase: Phase
    shutdown_timeout: float
    subscriptions: tuple[SubscriptionStatus, ...]

    @property
    def is_ready(self) -> bool:
        """Whether it is started and every subscription is in a good state."""
        return self.phase == "started" and all(each.state in _GOOD_STATES for each in self.subscriptions)

    def describe(self) -> dict[str, object]:
        """For JSON."""
        return {"is_ready": self.is_ready, **msgspec.to_builtins(self)}


class Status(Protocol):
    """How a worker is, at this moment."""

    @property
    def is_started(self) -> bool:
        """Whether it has started and is not shutting down."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it is started and every subscription is in a good state."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether every event loop turns, as far as is known."""
        ...

    def describe(self) -> dict[str, object]:
        """All of it, for JSON."""
        ...


def subscriptions_of(bus: EventBus) -> tuple[SubscriptionStatus, ...]:
    """The durable subscribers of a bus, as they are now."""
    return tuple(
        SubscriptionStatus(
            id=handle.id,
            state=handle.state,
            reason=handle.reason,
            checkpoint=handle.checkpoint,
            lag=handle.lag,
        )
        for handle in bus.subscriptions
    )
