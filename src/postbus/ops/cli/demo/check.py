"""Compares what was promised with what is in the database."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from postbus.delivery.interrupted import is_interruption
from postbus.errors import EventNotFoundError
from postbus.events import Event, EventStatus
from postbus.stores.sqlite import SQLiteStore

_BATCH_SIZE = 250


@dataclass(slots=True)
class Findings:
    """What became of the events that have a receipt."""

    done_count: int = 0
    retried_count: int = 0
    saved_count: int = 0
    recovered_count: int = 0
    unfinished_count: int = 0
    dead_letters: list[Event] = field(default_factory=list)
    missing_ids: list[str] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Count one event, by what the database says of it."""
        failure_count = sum(not is_interruption(error) for error in event.errors)
        self.recovered_count += any(map(is_interruption, event.errors))
        self.retried_count += failure_count > 0
        match event.status:
            case EventStatus.DONE:
                self.done_count += 1
                self.saved_count += failure_count > 0
            case EventStatus.DLQ:
                self.dead_letters.append(event)
            case EventStatus.PENDING | EventStatus.PROCESSING:
                self.unfinished_count += 1


async def check_receipts(
    database: Path, event_ids: Iterable[str], on_progress: Callable[[int], None]
) -> Findings:
    """Look up every id; *on_progress* gets how many were looked up so far."""
    findings = Findings()
    looked_up = 0
    remaining = iter(event_ids)
    async with SQLiteStore(database) as store:
        while batch := list(islice(remaining, _BATCH_SIZE)):
            await _check_batch(store, batch, findings)
            looked_up += len(batch)
            on_progress(looked_up)
    return findings


async def _check_batch(store: SQLiteStore, event_ids: Sequence[str], findings: Findings) -> None:
    results = await asyncio.gather(*map(store.get, event_ids), return_exceptions=True)
    for result in results:
        match result:
            case Event():
                findings.add(result)
            case EventNotFoundError():
                findings.missing_ids.append(result.event_id)
            case _:
                raise result
