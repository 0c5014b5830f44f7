"""Writes checkpoints: those that come alone in groups, those with more in a transaction of their own."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from postbus.errors import SubscriberFencedError
from postbus.events import Gap, Part, Progress, StateWrite, SubscriberId
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.burials import bury, note_retry
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.groups import Groups
from postbus.stores.postgres.lock_keys import batch_key
from postbus.stores.postgres.number_lists import to_literal
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.wake_ups import WakeUps

_CHANGED_NOTHING = "UPDATE 0"
_WHOLE = Part(0, 1)
# Of a row: the block of its table, and the number in it.
_Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Save:
    progress: Progress
    now: datetime
    saved: "asyncio.Future[None]"

    @property
    def key(self) -> tuple[SubscriberId, int]:
        return self.progress.subscriber_id, self.progress.epoch

    def settle(self, error: BaseException | None) -> None:
        """Tell whoever waits, if anybody does any more."""
        if self.saved.done():
            return
        if error is None:
            self.saved.set_result(None)
        else:
            self.saved.set_exception(error)


class Saving:
    """Writes how far subscribers have come. Nothing changes with another epoch or server than the present."""

    def __init__(
        self, database: Database, queries: Mapping[str, str], appending: Appending, wake_ups: WakeUps
    ) -> None:
        self._database, self._queries = database, queries
        self._appending, self._wake_ups = appending, wake_ups
        self._groups: Groups[_Save] = Groups(self._save_group, _Save.settle)
        # How many wait for a plain save, and whether there were several of late.
        self._waiting_count = 0
        self._is_in_company = False
        self._writing = asyncio.Lock()
        # Where the last save has left the row of who writes alone: a hint, since others may have written too.
        self._places: dict[SubscriberId, _Place] = {}

    async def save(self, progress: Progress, now: datetime) -> None:
        """Write all of it in one transaction. SubscriberFencedError, and the errors of its drafts."""
        if progress.outbox:
            await self._feed(progress, now)
            return
        if not _is_plain(progress):
            await self._save_whole(progress, now)
            return
        self._waiting_count += 1
        self._is_in_company = self._is_in_company or self._waiting_count > 1
        try:
            if not self._is_in_company:
                # Without the detour through a group, for which others are waited for.
                async with self._writing:
                    await self._save_alone(progress, now)
            else:
                save = _Save(progress, now, asyncio.get_running_loop().create_future())
                self._groups.submit(save)
                await save.saved
        finally:
            self._waiting_count -= 1

    async def drain(self) -> None:
        """Return when nothing is on its way any more."""
        await self._groups.drain()

    async def _save_group(self, group: list[_Save]) -> None:
        self._is_in_company = self._waiting_count > 1
        async with self._writing:
            for saves in _rounds(group):
                written = await self._write_many([save.progress for save in saves], saves[-1].now)
                for save in saves:
                    save.settle(None if save.key in written else _fenced(save.progress))

    async def _save_alone(self, progress: Progress, now: datetime) -> None:
        # Few calls, one within the other: with a checkpoint for each event this is what an event costs.
        place = self._places.pop(progress.subscriber_id, None)
        commit_mode = "off" if progress.is_repeatable else None
        row = None
        if place is not None and _is_simple(progress):
            values = (
                progress.subscriber_id,
                progress.epoch,
                progress.position,
                _head_of(progress),
                _gaps_or_none(progress),
                progress.event_id,
                now,
                progress.server,
                commit_mode,
                place,
            )
            row = await self._database.fetch_row(self._queries["move_checkpoint"], *values)
        if row is None:
            values = (*_checkpoint_values(progress, now), None, None, None, commit_mode)
            row = await self._database.fetch_row(self._queries["save_checkpoint"], *values)
        if row is None:
            raise _fenced(progress)
        self._places[progress.subscriber_id] = row[0]

    async def _move_together(self, given: Sequence[Progress], now: datetime) -> bool:
        """Whether all of them were moved. Those that were may be saved a second time."""
        tag = await self._database.execute(
            self._queries["move_checkpoints"],
            [each.subscriber_id for each in given],
            to_literal([each.epoch for each in given]),
            to_literal([each.position for each in given]),
            to_literal([_head_of(each) for each in given]),
            _gaps_or_none(given[0]),
            [each.event_id for each in given],
            now,
            given[0].server,
            _commit_mode(given),
        )
        return tag == f"UPDATE {len(given)}"

    async def _write_many(self, given: Sequence[Progress], now: datetime) -> set[tuple[SubscriberId, int]]:
        """Whose checkpoints were written."""
        if _can_move_together(given) and await self._move_together(given, now):
            return {(each.subscriber_id, each.epoch) for each in given}
        ids, epochs, positions, heads, gaps, event_ids, _, sequences, counts, servers = map(
            list, zip(*(_checkpoint_values(each, now) for each in given), strict=True)
        )
        found = await self._database.fetch(
            self._queries["save_checkpoints"],
            ids,
            to_literal(epochs),
            to_literal(positions),
            to_literal(heads),
            gaps,
            event_ids,
            now,
            to_literal(sequences),
            to_literal(counts),
            servers,
            _commit_mode(given),
        )
        return {(row[0], row[1]) for row in found}

    async def _save_whole(self, progress: Progress, now: datetime) -> None:
        async with self._database.transaction() as connection:
            # First: whoever is fenced has written nothing, and whoever comes later waits.
            if not await self._begin(connection, progress, now):
                # It was written, and the answer got lost: those who wait for its events were not told.
                self._wake_ups.announce(self._wake_ups.known_head)
                return
            head = await self._write_rest(connection, progress, now)
        if head:
            self._wake_ups.announce(head)

    async def _feed(self, progress: Progress, now: datetime) -> None:
        """One statement: this is what events cost that workers compete for."""
        assert _is_plain(progress), "a feeder has nothing else to write"
        entries = zip(
            *((each.sequence, each.event_id, each.dead_letter_id) for each in progress.outbox), strict=True
        )
        mark = batch_key(self._database.schema, progress.subscriber_id)
        row = await self._database.fetch_row(
            self._queries["save_and_feed"],
            *_checkpoint_values(progress, now),
            progress.write_id,
            *mark,
            # What is lost with the server is read and given to them again.
            "off",
            *entries,
        )
        if row is None or not row[0]:
            key = (progress.subscriber_id, progress.epoch, progress.write_id, progress.server)
            row = await self._database.fetch_row(self._queries["is_written"], *key)
            if row is None or not row[0]:
                raise _fenced(progress)
        self._wake_ups.work.announce(progress.subscriber_id)

    async def _begin(self, connection: Connection, progress: Progress, now: datetime) -> bool:
        """Move the checkpoint; False: this very progress is written already."""
        values = _checkpoint_values(progress, now)
        mark = batch_key(self._database.schema, progress.subscriber_id)
        values = (*values, progress.write_id, *mark, None)
        if await connection.execute(self._queries["save_checkpoint"], *values) != _CHANGED_NOTHING:
            return True
        key = (progress.subscriber_id, progress.epoch, progress.write_id, progress.server)
        if await connection.fetchval(self._queries["is_written"], *key):
            return False
        raise _fenced(progress)

    async def _write_rest(self, connection: Connection, progress: Progress, now: datetime) -> int:
        """All but the checkpoint; the number of the last new event, or 0."""
        subscriber_id = progress.dead_letters_of or progress.subscriber_id
        if progress.burials:
            await bury(connection, self._queries, subscriber_id, progress.burials, now)
        for retry in progress.retries:
            await note_retry(connection, self._queries, subscriber_id, retry, now)
        await self._write_states(connection, progress.states, now)
        if progress.given_up:
            firsts, lasts = zip(*progress.given_up, strict=True)
            part = progress.part or _WHOLE
            values = (subscriber_id, firsts, lasts, now, part.index, part.count)
            await connection.execute(self._queries["record_given_up"], *values)
        if not progress.drafts:
            return 0
        # Last: from here to the commit, readers see a gap that may be filled.
        stored = await self._appending.insert_within(connection, progress.drafts)
        return max((each.sequence or 0 for each in stored), default=0)

    async def _write_states(
        self, connection: Connection, writes: Sequence[StateWrite], now: datetime
    ) -> None:
        # The last of each, and in one order: two subscribers who write the same ones do not wait in a ring.
        last = sorted({(write.store_name, write.key): write for write in writes}.items())
        kept = [(*key, write.state_json.decode()) for key, write in last if write.state_json is not None]
        gone = [key for key, write in last if write.state_json is None]
        if kept:
            await connection.execute(self._queries["put_states"], *zip(*kept, strict=True), now)
        if gone:
            await connection.execute(self._queries["delete_states"], *zip(*gone, strict=True))


def gaps_to_array(gaps: Iterable[Gap]) -> list[int]:
    """Open gaps as they are stored: first, last, first, last, …"""
    return [number for gap in gaps for number in gap]


def array_to_gaps(numbers: Sequence[int]) -> tuple[Gap, ...]:
    """Open gaps as they were stored."""
    return tuple(map(Gap, numbers[::2], numbers[1::2]))


def _is_plain(progress: Progress) -> bool:
    return not (
        progress.burials or progress.retries or progress.states or progress.drafts or progress.given_up
    )


def _is_simple(progress: Progress) -> bool:
    """Whether move_checkpoint is enough."""
    return progress.attempt_sequence is None and not progress.attempt_count


def _can_move_together(given: Sequence[Progress]) -> bool:
    """Whether move_checkpoints is enough: one server, the same gaps, and nothing to say of attempts."""
    first = given[0]
    return all(each.open == first.open and each.server == first.server and _is_simple(each) for each in given)


def _head_of(progress: Progress) -> int:
    return progress.position if progress.head is None else progress.head


def _gaps_or_none(progress: Progress) -> str | None:
    return to_literal(gaps_to_array(progress.open)) if progress.open else None


def _checkpoint_values(progress: Progress, now: datetime) -> tuple[Any, ...]:
    """The values of save_checkpoint, but for the last ones."""
    return (
        progress.subscriber_id,
        progress.epoch,
        progress.position,
        _head_of(progress),
        to_literal(gaps_to_array(progress.open)),
        progress.event_id,
        now,
        progress.attempt_sequence,
        progress.attempt_count,
        progress.server,
    )


def _commit_mode(given: Sequence[Progress]) -> str | None:
    """How the commit of checkpoints is to wait for the disk; None: as the server has it."""
    return "off" if all(each.is_repeatable for each in given) else None


def _rounds(group: Sequence[_Save]) -> list[list[_Save]]:
    """In each round every subscriber once: one statement changes a row only once."""
    rounds: list[dict[tuple[SubscriberId, int], _Save]] = []
    for save in group:
        free = next((each for each in rounds if save.key not in each), None)
        if free is None:
            rounds.append(free := {})
        free[save.key] = save
    return [list(each.values()) for each in rounds]


def _fenced(progress: Progress) -> SubscriberFencedError:
    return SubscriberFencedError(progress.subscriber_id, progress.epoch)
