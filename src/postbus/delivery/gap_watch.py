"""Tells of gaps that stay open for long, and gives them up where the user wants that."""

import logging
import math

from postbus.config import ReliableDeliveryConfig
from postbus.delivery.catch_up import CatchUp
from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.events import Gap, OpenWriter, SubscriberId
from postbus.policy.gaps import GapTimer, SubscriberState
from postbus.ports import Clock, Store, WantedEvents

logger = logging.getLogger("postbus")

_LATE = (
    'its number was given up after gap_timeout (gap_policy="timeout") and it was committed after that; '
    "retry this dead letter to process it"
)
# Of many gaps only so many are named.
_MOST_NAMED = 5


class GapWatch:
    """Watches the gaps that one durable subscriber waits for."""

    def __init__(
        self,
        subscriber_id: SubscriberId,
        wanted: WantedEvents | None,
        writer: CheckpointWriter,
        catch_up: CatchUp,
        store: Store,
        config: ReliableDeliveryConfig,
        clock: Clock,
    ) -> None:
        self._subscriber_id, self._wanted, self._writer = subscriber_id, wanted, writer
        self._catch_up, self._store, self._clock = catch_up, store, clock
        self._gap_timeout, self._gives_up = config.gap_timeout, config.gap_policy == "timeout"
        self._timer = GapTimer(config.gap_timeout)
        # All parts wait for the same gaps: one of them says so.
        self._tells = wanted is None or wanted.part is None or wanted.part.index == 0
        self._told_up_to = 0
        # Asked after every look at the log, and now and then besides.
        self._is_looking = False
        self._looked_for_late_at = -math.inf

    async def look(self) -> bool:
        """Whether there is a gap to be looked into again. StoreError."""
        if not self._is_looking:
            self._is_looking = True
            try:
                await self._look()
            finally:
                self._is_looking = False
        return self._waiting_state().is_waiting_for_gap

    async def _look(self) -> None:
        if self._gives_up:
            await self._bury_late()
        state = self._waiting_state()
        now = self._clock.monotonic()
        self._timer.note(state, now)
        overdue = self._timer.overdue(state, now)
        if overdue and self._gives_up:
            self._give_up(overdue)
        elif overdue and self._tells:
            await self._tell(overdue)

    def _waiting_state(self) -> SubscriberState:
        state, blocked_by = self._writer.state, self._catch_up.blocked_by
        # In global order the gap lies right ahead, and not among what was processed.
        if blocked_by and blocked_by[0].first == state.head + 1:
            state.pass_to(blocked_by[0].last + 1, blocked_by[:1])
        return state

    def _give_up(self, gaps: tuple[Gap, ...]) -> None:
        logger.warning(
            "subscriber %s gives up the numbers %s, which nobody has used for %g s",
            self._subscriber_id,
            _names(gaps),
            self._gap_timeout,
            extra={"subscriber_id": self._subscriber_id, "gaps": [list(gap) for gap in gaps]},
        )
        self._writer.give_up(gaps)

    async def _tell(self, gaps: tuple[Gap, ...]) -> None:
        """Once for each gap."""
        news = tuple(gap for gap in gaps if gap.last > self._told_up_to)
        if not news:
            return
        writers = await self._store.log.open_writers()
        self._told_up_to = news[-1].last
        logger.warning(
            "subscriber %s has waited for the numbers %s for more than %g s: %s",
            self._subscriber_id,
            _names(news),
            self._gap_timeout,
            "; ".join(map(_describe, writers[:_MOST_NAMED])) or "nobody is at work on them any more",
            extra={"subscriber_id": self._subscriber_id, "gaps": [list(gap) for gap in news]},
        )

    async def _bury_late(self) -> None:
        now = self._clock.monotonic()
        if now - self._looked_for_late_at < self._gap_timeout:
            return
        self._looked_for_late_at = now
        owner, dead_letters = self._writer.owner, self._store.dead_letters
        for event in await dead_letters.bury_late(self._subscriber_id, self._wanted, _LATE, owner):
            logger.error(
                "event %s (%s) came too late for %s, at the number %s that it had given up: "
                "it is a dead letter",
                event.id,
                event.type,
                self._subscriber_id,
                event.global_sequence,
                extra={"event_id": event.id, "subscriber_id": self._subscriber_id},
            )


def _names(gaps: tuple[Gap, ...]) -> str:
    names = [str(gap.first) if gap.first == gap.last else f"{gap.first} to {gap.last}" for gap in gaps]
    more = f" and {len(names) - _MOST_NAMED} more gaps" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _describe(writer: OpenWriter) -> str:
    age = "an unknown time (its role may not be seen)"
    if writer.age_seconds is not None:
        age = f"{writer.age_seconds:.1f} s"
    if writer.gid is not None:
        return f"the prepared transaction {writer.gid!r} has been open for {age}"
    application = f"application {writer.application_name!r}"
    return f"the transaction of pid {writer.pid} ({application}) has been open for {age}"
