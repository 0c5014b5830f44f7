"""The one connection of a bus that is not pooled: its locks and its wake-ups live and die with it."""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from postbus.errors import StoreError, StoreUnavailableError
from postbus.stores.postgres.lock_keys import session_key
from postbus.stores.postgres.pace import Pace, patient_for
from postbus.stores.postgres.pool import Connect, Connection, break_off, close_gently
from postbus.stores.postgres.translation import DRIVER_ERRORS, translate, translated

logger = logging.getLogger("postbus")

T = TypeVar("T")

_FAILOVER_TIMEOUT = 10.0
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 2.0
# Soon enough that the server does not end the session meanwhile, and not while asyncio.run() ends.
_SECONDS_WITHOUT_KEEPER = 1.0


class Session:
    """Listens, holds locks, proves that it is alive; replaced when it is not, however long that takes."""

    def __init__(self, connect: Connect, channel: str, queries: Mapping[str, str]) -> None:
        self._connect = connect
        self._channel = channel
        self._queries = queries
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._pace = Pace.within(_FAILOVER_TIMEOUT)
        # What the server knows of it; None: nothing, because this is not the server itself but a pooler.
        self._told_pace: Pace | None = None
        # Something has changed: the keeper looks at once.
        self._look = asyncio.Event()
        self._on_notification: list[Callable[[int | None], None]] = []
        self._on_words: list[Callable[[str], None]] = []
        self._on_lost: list[Callable[[], None]] = []
        self._is_listening = False
        # Whether the connection that is there now has its listener.
        self._has_listener = False
        self._echo: tuple[str, asyncio.Event] | None = None
        # Whether a notification ever came through the listener of this connection.
        self._is_proven = False
        self._has_warned = False
        # Why there is no connection, as far as is known.
        self._why_down = "not connected yet"
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def is_up(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._connection is not None

    def on_notification(self, callback: Callable[[int | None], None]) -> None:
        """Call this in the event loop with the number announced; None: something may have been missed."""
        self._on_notification.append(callback)

    def on_words(self, callback: Callable[[str], None]) -> None:
        """Call this in the event loop with a notification of any other kind."""
        self._on_words.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call this in the event loop, once for every connection that is lost."""
        self._on_lost.append(callback)

    def set_failover_timeout(self, seconds: float) -> None:
        """Have the server end a session that is silent, so soon that others have its locks in this time."""
        self._pace = Pace.within(seconds)
        self._look.set()

    async def start(self) -> None:
        """Connect. StoreUnavailableError. Idempotent."""
        if self._keeper is None:
            await self._open()
            self._begin_keeping()

    def listen(self) -> None:
        """Hear notifications from now on. Idempotent.

        Not before somebody asks: each notification costs the server work for everybody who listens.
        """
        if not self._is_listening:
            self._is_listening = True
            if self._connection is not None:
                self._keep_running(self._begin_listening())

    async def stop(self) -> None:
        """Let go of the connection and all that was held on it; bounded. Idempotent."""
        keeper, self._keeper = self._keeper, None
        connection, self._connection = self._connection, None
        try:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait([keeper])
            if connection is not None:
                await close_gently(connection)
        finally:
            if connection is not None:
                break_off(connection)
        if self._running:
            await asyncio.wait(self._running)

    async def run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        """Run this on the session, one at a time. StoreUnavailableError while it is down.

        It goes on to its end when the caller is cancelled: to break off a statement would cost the
        session and all its locks.
        """
        return await asyncio.shield(self._keep_running(self._run(operation)))

    async def execute(self, query: str, *args: object) -> None:
        """As run(), for one statement of a caller who is cancelled only when the session is about to end."""
        await self._run(lambda connection: connection.execute(query, *args))

    def is_current(self, connection: Connection) -> bool:
        """Whether what is held on this connection still counts."""
        return connection is self._connection

    async def _run(self, operation: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise StoreUnavailableError(
                    f"the session to the database is down and is being replaced: {self._why_down}"
                )
            try:
                async with patient_for(self._pace.answer):
                    return await operation(connection)
            except DRIVER_ERRORS as error:
                translation = translate(error)
                assert translation is not None
                if isinstance(translation, StoreUnavailableError):
                    self._lose(connection, str(translation))
                raise translation from error

    def _keep_running(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        running = asyncio.create_task(coroutine)
        self._running.add(running)
        running.add_done_callback(self._finish)
        return running

    async def _begin_listening(self) -> None:
        """On a connection that is there already; a new one listens from its beginning."""
        # Should it fail, the connection is replaced, or the keeper tries again.
        with contextlib.suppress(StoreError):
            await self.run(self._add_listener)

    async def _add_listener(self, connection: Connection) -> None:
        if not self._has_listener:
            await self._limit_silence(connection)
            await connection.add_listener(self._channel, self._hear)
            self._has_listener = self.is_current(connection)
            # It has to prove itself.
            self._look.set()
            self._tell(None)

    async def _limit_silence(self, connection: Connection) -> None:
        pace, pid = self._pace, connection.get_server_pid()
        # Not behind a pooler: there the setting would stay on a connection of others.
        is_told = await connection.fetchval(
            self._queries["end_when_silent"], str(int(pace.silence * 1000)), pid, session_key(self._channel)
        )
        self._told_pace = pace if is_told else None

    def _finish(self, running: "asyncio.Task[Any]") -> None:
        self._running.discard(running)
        # Nobody asks for the error if the caller was cancelled.
        if not running.cancelled():
            running.exception()

    async def _open(self) -> None:
        connection = await self._connect()
        has_listener = self._is_listening
        try:
            with translated():
                if has_listener:
                    async with patient_for(self._pace.answer):
                        # First: whoever gets a lock on this session can be relied on to lose it.
                        await self._limit_silence(connection)
                        await connection.add_listener(self._channel, self._hear)
                connection.add_termination_listener(lambda _: self._lose(connection, "it was closed"))
        except BaseException:
            break_off(connection)
            raise
        self._connection = connection
        self._has_listener, self._is_proven = has_listener, False

    def _begin_keeping(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name="postbus session")
        self._keeper.add_done_callback(self._see_off_keeper)

    def _see_off_keeper(self, keeper: "asyncio.Task[None]") -> None:
        if keeper.cancelled() and keeper is self._keeper:
            # A program that cancels all tasks, say: nobody else would notice that the session has ended.
            logger.warning("the task that keeps the session was cancelled from outside; it starts again")
            loop = asyncio.get_running_loop()
            loop.call_later(_SECONDS_WITHOUT_KEEPER, self._begin_keeping_again, keeper)

    def _begin_keeping_again(self, after: "asyncio.Task[None]") -> None:
        if self._keeper is after:
            self._begin_keeping()

    async def _keep(self) -> None:
        """Prove again and again that the connection is alive; replace it when it is not."""
        wait = _SHORTEST_WAIT
        while True:
            connection = self._connection
            self._look.clear()
            try:
                if connection is None:
                    await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                    wait = min(wait * 2, _LONGEST_WAIT)
                    await self._replace()
                elif await self._is_alive(connection):
                    wait = _SHORTEST_WAIT
                    await self._rest()
            except Exception as error:
                # Whatever the driver comes up with: a session that nobody keeps would be dead for ever.
                logger.exception("the session to the database failed in an unknown way")
                if connection is not None:
                    self._lose(connection, repr(error))

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.beat):
                await self._look.wait()

    async def _replace(self) -> None:
        try:
            await self._open()
        except StoreError as error:
            self._why_down = str(error)
            logger.debug("the session to the database is still down: %s", error)
        else:
            logger.info("there is a session to the database again")
            self._tell(None)

    async def _is_alive(self, connection: Connection) -> bool:
        """Send a notification to ourselves and see whether it comes back; whether the connection is sound."""
        if not self._has_listener:
            # Any answer will do: a notification would not come back.
            if self._is_listening:
                await self._begin_listening()
            else:
                with contextlib.suppress(StoreError):
                    await self.run(lambda session: session.fetchval(self._queries["beat"]))
            return self.is_current(connection)
        if self._told_pace not in (None, self._pace):
            with contextlib.suppress(StoreError):
                await self.run(self._limit_silence)
        probe, echo = f"probe {secrets.token_hex(8)}", asyncio.Event()
        self._echo = (probe, echo)
        try:
            values = (self._channel, probe, self._pace.silence - self._pace.beat)
            row = await self.run(lambda session: session.fetchrow(self._queries["probe"], *values))
            if row is not None and row[1] is not None:
                await self._end_blocked(row[1])
            async with patient_for(self._pace.answer):
                await echo.wait()
            if self.is_current(connection):
                self._note_echo()
        except TimeoutError:
            self._miss_echo(connection)
        except StoreError as error:
            # The connection is lost already; or it is sound and only the notification was refused.
            logger.debug("the session to the database could not notify itself: %s", error)
            with contextlib.suppress(StoreError):
                await self.run(lambda session: session.fetchval(self._queries["clear_queue"]))
        return self.is_current(connection)

    async def _end_blocked(self, pids: str) -> None:
        """End those of these sessions that are of our bus: nobody could have their locks otherwise."""
        query, key = self._queries["end_blocked"], session_key(self._channel)
        try:
            ended = await self.run(lambda session: session.fetch(query, pids, key))
        except StoreError as error:
            logger.debug("a session that gives no sign of life could not be ended: %s", error)
            return
        for row in ended:
            logger.warning(
                "another instance has given no sign of life for too long: its session (process %d of the "
                "server) is ended",
                row[0],
            )

    def _note_echo(self) -> None:
        if self._told_pace is None:
            # Luck: the next one may not come back.
            self._warn_of_pooler()
        else:
            self._is_proven = True

    def _miss_echo(self, connection: Connection) -> None:
        if self._is_proven:
            self._lose(connection, "its listener went silent")
        else:
            self._warn_of_pooler()

    def _warn_of_pooler(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "LISTEN has no effect on the session to the database, as behind a pooler in transaction "
                "mode: events are noticed by polling only, and two instances of a subscriber can take "
                "turns; give the store a session_dsn that leads to the server itself"
            )

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        words = str(payload)
        if self._echo is not None and words == self._echo[0]:
            self._echo[1].set()
        elif not words:
            self._tell(None)
        elif words.isdecimal():
            self._tell(int(words))
        else:
            for on_words in self._on_words:
                on_words(words)

    def _lose(self, connection: Connection, reason: str) -> None:
        if not self.is_current(connection):
            return
        self._connection = None
        self._look.set()
        if self._echo is not None:
            self._echo[1].set()
        # Not closed gently: one that does not answer would not answer to that either.
        break_off(connection)
        self._why_down = reason
        logger.warning("the session to the database was lost: %s; connecting again", reason)
        for on_lost in self._on_lost:
            on_lost()

    def _tell(self, sequence: int | None) -> None:
        for on_notification in self._on_notification:
            on_notification(sequence)
