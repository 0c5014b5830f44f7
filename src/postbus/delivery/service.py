"""What serves one durable subscriber in this instance, however its work is shared with others."""

import asyncio
from typing import Protocol

from postbus.delivery.subscriber import Subscriber
from postbus.events import Gap, GlobalSequence


class Service(Protocol):
    """As the bus and the subscription's handle see it."""

    subscriber: Subscriber
    """Whom it serves; may be replaced by one with another receiver before it starts."""

    @property
    def state(self) -> str:
        """starting, catching_up, live, standby, paused, stopped or failed."""
        ...

    @property
    def reason(self) -> str | None:
        """Why nothing goes on at the moment, if so."""
        ...

    @property
    def checkpoint(self) -> GlobalSequence | None:
        """Up to where everything is processed and written, as far as this instance knows."""
        ...

    @property
    def position(self) -> GlobalSequence:
        """Everything up to here was processed, is a dead letter or not wanted."""
        ...

    def has_written(self, sequence: GlobalSequence) -> bool:
        """Whether this number was processed and that is written, as far as this instance knows."""
        ...

    def missing(self, *, here: bool = False) -> tuple[Gap, ...]:
        """Numbers that were not there when the log was read for it, and may be by now, as far as is known.

        *here*: in this instance alone.
        """
        ...

    def want_written(self, target: GlobalSequence) -> None:
        """Somebody waits for *target*: write it, or ask how far others are, as soon as may be."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether this instance delivers, and does so now."""
        ...

    def is_idle_at(self, head: GlobalSequence) -> bool:
        """Whether everything up to there was processed, and whatever is due was written."""
        ...

    @property
    def is_at_rest(self) -> bool:
        """Whether a pause is complete: no handler runs and none will, or nobody wants a pause any more."""
        ...

    @property
    def is_begun(self) -> bool:
        """Whether the bus was started."""
        ...

    def start(self, head: GlobalSequence | None = None) -> None:
        """Begin; *head* is where the log is at this moment, if that is known."""
        ...

    def follow(self, predecessors: "list[Service]") -> None:
        """Those of the same id that were unsubscribed have to end first."""
        ...

    def wake(self) -> None:
        """Look again: the log may have grown, or somebody wants something."""
        ...

    def try_again(self) -> None:
        """Somebody has let go of something: a standby need not wait."""
        ...

    def lose(self) -> None:
        """All locks are lost: deliver nothing after the event at hand."""
        ...

    def pause(self) -> None:
        """Deliver nothing after the event at hand."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def stop(self) -> None:
        """End after the event at hand, what was processed written."""
        ...

    async def look_at_gaps(self) -> None:
        """Tell of gaps that are open for long."""
        ...

    def is_run_by(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether it is the subscriber's own handler that asks, and would wait for itself."""
        ...

    def check_waits_not_for_itself(self) -> None:
        """Refuse a wait that could never end."""
        ...

    async def wait_until_stopped(self, by: "asyncio.Task[object] | None" = None) -> None:
        """Return when it has ended; neither a handler that was given up nor *by* is waited for."""
        ...

    async def cut_off(self, by: "asyncio.Task[object] | None") -> None:
        """End it in the middle of an event, which is delivered again by the next start."""
        ...

    async def wait_for_change(self) -> None:
        """Return when the state or the position may have changed."""
        ...
