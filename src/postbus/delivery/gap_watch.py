"""Tells of gaps that stay open for long, and gives them up where the user wants that."""

import logging
import math

from postbus.config import ReliableDeliveryConfig
from postbus.delivery.catch_up import CatchUp
from postbus.delivery.checkpoint_writer import CheckpointWriter
from postbus.delivery.deliveries import numbers_of
from postbus.events import Gap, LogPosition, OpenWriter, SubscriberId
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
        self._is_telling = False
        self._looked_for_late_at = -math.inf
        self._looked_into_up_to = 0
        self.is_due = False
        """Whether to look before all that is in the log is delivered: there may be a gap to be given up."""

    async def look(self) -> bool:
        """Tell of gaps or give them up; whether there is one to be looked into again. StoreError.

        To be asked only while no page of the log is at hand: it may have what would be given up.
        """
        if self._gives_up:
            await self._bury_late()
            await self._give_up_what_is_missing()
        else:
            await self._tell()
        return self._waiting_state().is_waiting_for_gap

    async def watch(self) -> None:
        """Tell of gaps, also while handlers are at work: nothing is given up. StoreError."""
        if not self._gives_up:
            await self._tell()
            return
        await self._bury_late()
        overdue = self._find_overdue()
        # Once for each gap: asked more often than a page can be read, nothing would be delivered.
        if overdue and overdue[-1].last > self._looked_into_up_to:
            self.is_due = True

    def _find_overdue(self) -> tuple[Gap, ...]:
        state, now = self._waiting_state(), self._clock.monotonic()
        self._timer.note(state, now)
        return self._timer.overdue(state, now)

    def _waiting_state(self) -> SubscriberState:
        state, blocked_by = self._writer.state, self._catch_up.blocked_by
        # In global order the gap lies right ahead, and not among what was processed.
        if blocked_by and blocked_by[0].first == state.head + 1:
            state.pass_to(blocked_by[0].last + 1, blocked_by[:1])
        return state

    async def _give_up_what_is_missing(self) -> None:
        self.is_due = False
        overdue = self._find_overdue()
        if not overdue:
            return
        self._looked_into_up_to = overdue[-1].last
        # The last page may be older than the moment at which they became overdue, by as much time as handlers
        # have taken for it. What has come meanwhile, and what is above it, is left to the next page.
        after = LogPosition(self._waiting_state().head, overdue)
        found = numbers_of((await self._store.log.read(after, 1, self._wanted)).events)
        if missing := _below(overdue, found[0]) if found else overdue:
            self._give_up(missing)

    def _give_up(self, gaps: tuple[Gap, ...]) -> None:
        logger.warning(
            "subscriber %s gives up the numbers %s, which nobody has used for %g s",
            self._subscriber_id,
            _names(gaps),
            self._gap_timeout,
            extra={"subscriber_id": self._subscriber_id, "gaps": [list(gap) for gap in gaps]},
        )
        self._writer.give_up(gaps)

    async def _tell(self) -> None:
        """Once for each gap."""
        overdue = self._find_overdue()
        news = tuple(gap for gap in overdue if gap.last > self._told_up_to)
        if not news or not self._tells or self._is_telling:
            return
        self._is_telling = True
        try:
            await self._tell_of(news)
        finally:
            self._is_telling = False

    async def _tell_of(self, news: tuple[Gap, ...]) -> None:
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


def _below(gaps: tuple[Gap, ...], number: int) -> tuple[Gap, ...]:
    return tuple(Gap(gap.first, min(gap.last, number - 1)) for gap in gaps if gap.first < number)


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
