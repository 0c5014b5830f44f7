"""Wake-ups between the buses of one schema: NOTIFY for the others, a call for this process."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from postbus.errors import StoreError
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.migrations import create_notify_trigger
from postbus.stores.postgres.pool import CLOSE_SECONDS, Connection
from postbus.stores.postgres.schema_name import text_literal
from postbus.stores.postgres.thinning import Thinning
from postbus.stores.postgres.work_wake_ups import WorkWakeUps

logger = logging.getLogger("postbus")

NotifyMode = Literal["after_commit", "trigger", "off"]

# From the beginning of a notification to that of the next: each is a statement of its own.
_SECONDS_BETWEEN = 0.001
_SHORTEST_LOOK = 0.005
_LONGEST_LOOK = 0.5
_GIVEN_UP_AFTER = 60.0
# How many of our own notifications may be on their way back, or are back before they are known to be ours.
_MOST_ECHOES = 64


class WakeUps:
    """Tells the watchers that the log may have grown. Nothing raises: polling remains."""

    def __init__(self, database: Database, mode: NotifyMode = "after_commit") -> None:
        self._database = database
        self._mode = mode
        self._queries = database.queries("wake_ups.sql")
        self.work = WorkWakeUps(database, is_silent=mode == "off")
        """For the workers of the outbox."""
        self._watchers: list[Callable[[], None]] = []
        self._head = 0
        self._is_wake_scheduled = False
        self._unsent: int | None = None
        # What others may well tell of sooner, and who sees to it that somebody does.
        self._owed: int | None = None
        self._thinning = Thinning()
        self._debt_timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None
        self._echoes: deque[int] = deque(maxlen=_MOST_ECHOES)
        self._heard: deque[int] = deque(maxlen=_MOST_ECHOES)
        self._has_warned = False
        # Numbers of transactions that are not ours, with the moment at which they are given up.
        self._foreign: dict[int, float] = {}
        self._looker: asyncio.Task[None] | None = None
        self._look_wait = _SHORTEST_LOOK
        database.session.on_notification(self._hear)
        if mode == "trigger":
            database.at_open(self._create_trigger)

    @property
    def known_head(self) -> int:
        """The highest number that this process has read or written."""
        return self._head

    def note_head(self, sequence: int) -> None:
        """This number was seen; nobody is woken."""
        if sequence > self._head:
            self._head = sequence

    def watch(self, on_append: Callable[[], None]) -> None:
        """Call this in the event loop when the log may have grown. Several may watch."""
        self._watchers.append(on_append)
        self._database.session.listen()

    def unwatch(self, on_append: Callable[[], None]) -> None:
        """Do not call it any more. Idempotent."""
        if on_append in self._watchers:
            self._watchers.remove(on_append)

    def wake(self) -> None:
        """Wake this process's watchers, once for all wake-ups of this turn of the event loop."""
        if not self._is_wake_scheduled and self._watchers:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def announce(self, sequence: int, first: int | None = None) -> None:
        """This number is committed: wake this process's watchers now and the other processes soon.

        *first*: the lowest number of the same commit, if there are several.
        """
        self.note_head(sequence)
        self.wake()
        if self._mode == "after_commit":
            self._owed = sequence if self._owed is None else max(self._owed, sequence)
            if self._thinning.commit(sequence if first is None else first, sequence, time.monotonic()):
                self._send_owed()
            elif self._debt_timer is None:
                self._look_at_debt()

    @property
    def channel_of_next(self) -> str | None:
        """Where the statement that makes the next commit may notify by itself; None: it must not."""
        is_each_told = self._mode == "after_commit" and self._thinning.step == 1 and not self._has_warned
        return self._database.channel if is_each_told else None

    def note_notified(self, sequence: int) -> None:
        """This number is committed, and the other processes are notified: wake the watchers of this one."""
        self.note_head(sequence)
        # Whatever was committed meanwhile may have come too late for that notification: it is still owed.
        if self._thinning.commit(sequence, sequence, time.monotonic()):
            self._send_owed()
        elif self._owed is None:
            self._thinning.settle()
        if sequence in self._heard:
            self._heard.remove(sequence)
        else:
            self._echoes.append(sequence)
            self.wake()

    def watch_foreign(self, sequences: Sequence[int]) -> None:
        """Announce these numbers of a caller's own transaction as soon as they are visible."""
        if self._mode == "trigger":
            # The trigger does it at their commit, for this process too.
            return
        given_up_at = asyncio.get_running_loop().time() + _GIVEN_UP_AFTER
        self._foreign.update(dict.fromkeys(sequences, given_up_at))
        self._look_wait = _SHORTEST_LOOK
        if self._foreign and self._looker is None:
            self._looker = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Send what is waiting, forget the watchers. Idempotent; before the database closes."""
        self._watchers.clear()
        await self.work.close()
        if (looker := self._looker) is not None:
            looker.cancel()
            await asyncio.wait([looker])
        if self._debt_timer is not None:
            self._debt_timer.cancel()
            self._debt_timer = None
        self._send_owed()
        if (sender := self._sender) is not None:
            await asyncio.wait([sender], timeout=CLOSE_SECONDS)
            sender.cancel()
            await asyncio.wait([sender])

    def _wake_now(self) -> None:
        self._is_wake_scheduled = False
        for on_append in list(self._watchers):
            on_append()

    def _hear(self, sequence: int | None) -> None:
        if sequence is None:
            # What was sent while nobody listened does not come back.
            self._echoes.clear()
            self._heard.clear()
        elif sequence in self._echoes:
            # From this process, whose watchers know.
            self._echoes.remove(sequence)
            return
        else:
            self._heard.append(sequence)
        # No more than a wake-up: anybody may notify of any number. It does not wait for the next turn of the
        # event loop: that would be a tenth of the way from here to the handler.
        if not self._is_wake_scheduled:
            self._wake_now()

    def _look_at_debt(self) -> None:
        """Pay it if it is due. One timer for as long as there is any: a new one for each event would cost."""
        self._debt_timer = None
        due_at = self._thinning.due_at
        if due_at is None:
            return
        seconds_left = due_at - time.monotonic()
        if seconds_left <= 0:
            self._thinning.settle()
            self._send_owed()
        else:
            self._debt_timer = asyncio.get_running_loop().call_later(seconds_left, self._look_at_debt)

    def _send_owed(self) -> None:
        if self._owed is not None:
            # Whatever is still unsent is told by the same notification.
            self._unsent = self._owed if self._unsent is None else max(self._unsent, self._owed)
            self._owed = None
            if self._sender is None:
                self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._unsent is not None:
                sequence, self._unsent = self._unsent, None
                began_at = now()
                await self._notify(sequence)
                self._thinning.note_statement(now() - began_at)
                await asyncio.sleep(max(0.0, began_at + _SECONDS_BETWEEN - now()))
        finally:
            self._sender = None

    async def _notify(self, sequence: int) -> None:
        self._echoes.append(sequence)
        try:
            # The channel last: the name of its schema may look like a gap to fill.
            query = self._queries["notify_on_session"].replace("{number}", str(sequence))
            await self._execute(query.replace("{channel}", text_literal(self._database.channel)))
        except StoreError as error:
            # It may have been sent, and heard, all the same.
            with contextlib.suppress(ValueError):
                self._echoes.remove(sequence)
            log = logger.debug if self._has_warned else logger.warning
            self._has_warned = True
            log("other processes can't be notified of new events, they have to poll: %s", error)
        else:
            self._has_warned = False

    async def _execute(self, query: str) -> None:
        # On the session, which is there and has little else to do: in the pool a connection would have to be
        # opened beside the publisher's own, or all may be in use.
        if self._database.session.is_up:
            await self._database.session.execute(query)
        else:
            await self._database.execute(query)

    async def _look(self) -> None:
        try:
            while self._foreign:
                await asyncio.sleep(self._look_wait)
                self._look_wait = min(self._look_wait * 2, _LONGEST_LOOK)
                await self._look_once()
        finally:
            self._looker = None

    async def _look_once(self) -> None:
        try:
            rows = await self._database.fetch(self._queries["visible"], list(self._foreign))
        except StoreError as error:
            logger.debug("can't look for events of other transactions: %s", error)
            rows = []
        for row in rows:
            del self._foreign[row[0]]
            self.announce(row[0])
        now = asyncio.get_running_loop().time()
        for sequence in [each for each, given_up_at in self._foreign.items() if given_up_at <= now]:
            del self._foreign[sequence]

    async def _create_trigger(self, connection: Connection) -> None:
        await create_notify_trigger(connection, self._database.schema)
