"""The course of the demonstration: publish, kill, start again, check."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from postbus.ops.cli.demo.check import Findings, check_receipts
from postbus.ops.cli.demo.child import PUBLISHER_COUNT
from postbus.ops.cli.demo.display import Display
from postbus.ops.cli.demo.process import Child, Stop
from postbus.ops.cli.demo.receipts import Receipts
from postbus.ops.cli.demo.summary import Outcome

_SECONDS_BETWEEN_LOOKS = 0.01
_NEVER_REACHED = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Files:
    """Where the demonstration leaves its traces."""

    database: Path

    @property
    def receipts(self) -> Path:
        """What was acknowledged, outside the database."""
        return self.database.with_name(f"{self.database.name}.receipts")

    @property
    def log(self) -> Path:
        """What the bus logs."""
        return self.database.with_name(f"{self.database.name}.log")


class Demonstration:
    """One run; it owns the child process and leaves none behind."""

    def __init__(self, files: Files, order_count: int, stop: Stop, display: Display) -> None:
        self._database, self._order_count = files.database, order_count
        self._stop, self._display = stop, display
        self._receipts = Receipts(files.receipts)
        self._child = Child(files.database, files.receipts, files.log, order_count)
        self._killed_after: int | None = None

    def run(self) -> Outcome:
        """From the first order to the last receipt, or until somebody says stop."""
        with self._display:
            try:
                self._publish_and_kill()
                if not self._stop:
                    self._publish_the_rest()
                if self._stop:
                    self._drain()
            finally:
                self._child.kill()
            findings = self._check()
        return Outcome(
            findings=findings,
            order_count=self._order_count,
            acknowledged_count=len(self._receipts.acknowledged),
            killed_after=self._killed_after,
            busy_seconds=self._receipts.busy_seconds,
            was_stopped=bool(self._stop),
        )

    def _publish_and_kill(self) -> None:
        step = f"Publishing {self._order_count:,} orders, {PUBLISHER_COUNT} publishers at once"
        self._display.begin(step, "acknowledged", self._order_count)
        # Far more than there are to be: it must not be done before it is killed.
        self._child.start(last=_NEVER_REACHED)
        self._follow(until_count=self._order_count // 2)
        if self._stop:
            return
        self._child.kill()
        self._read_receipts()
        count = len(self._receipts.acknowledged)
        self._killed_after = count
        self._display.end(f"Published {count:,} orders, {PUBLISHER_COUNT} publishers at once")
        self._display.end("Killed the publishing process with SIGKILL, in full flight", is_bad_news=True)
        self._display.pause(self._stop)

    def _publish_the_rest(self) -> None:
        self._display.begin(
            "Started again: recovering, publishing the rest", "acknowledged", self._order_count
        )
        self._child.start(last=self._order_count)
        self._follow(until_count=None)
        if self._stop:
            return
        self._read_receipts()
        recovered = len(self._receipts.recovered)
        self._display.end(f"Started again: recovered {recovered:,} that were in flight, published the rest")

    def _drain(self) -> None:
        self._display.end("Stopped on request", is_bad_news=True)
        self._display.begin("Finishing what is in flight", "acknowledged", self._order_count)
        self._child.drain()
        self._read_receipts()
        self._display.end("Finished what was in flight")

    def _check(self) -> Findings:
        event_ids = tuple(self._receipts.acknowledged)
        self._display.begin("Looking up every receipt in the database", "looked up", len(event_ids))
        findings = asyncio.run(
            check_receipts(
                self._database, event_ids, lambda count: self._display.advance(count, self._receipts)
            )
        )
        self._display.end(f"Looked up {len(event_ids):,} receipts in the database")
        return findings

    def _follow(self, until_count: int | None) -> None:
        """Watch the child until it ends, has so many receipts, or somebody says stop."""
        while not self._stop and self._child.is_running():
            self._read_receipts()
            if until_count is not None and len(self._receipts.acknowledged) >= until_count:
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _read_receipts(self) -> None:
        self._receipts.read()
        self._display.advance(len(self._receipts.acknowledged), self._receipts)
