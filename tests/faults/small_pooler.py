"""A small pooler that lends a server's connections from transaction to transaction, as PgBouncer does.

For machines where PgBouncer can't be had. It knows of the protocol only what such a pooler must: who is in
a transaction. Its server has to trust it.
"""

import asyncio
import secrets
import struct
from asyncio import IncompleteReadError, Queue, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.postgres.existing import Postgres

_ENCRYPTION_REQUESTS = (80877103, 80877104)
_VERSION_3 = 196608
_ASKS_TO_BE_READY = (b"Q", b"S")
_BACKEND_KEY, _ERROR, _NOTIFICATION, _READY, _TERMINATE = b"K", b"E", b"A", b"Z", b"X"
_IDLE = b"I"
_MOST_CONNECTIONS = 5


@dataclass(eq=False)
class _ServerConnection:
    reader: StreamReader
    writer: StreamWriter
    # What the server tells everybody at the beginning: its version, its encoding.
    greeting: bytes = b""


@dataclass(eq=False)
class _Pool:
    """The connections to one database, the one that has rested longest first."""

    resting: "Queue[_ServerConnection]" = field(default_factory=Queue)
    open_count: int = 0


class SmallPooler:
    """Listens like a server. An async context manager."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._pools: dict[bytes, _Pool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[StreamWriter] = set()

    def through(self, dsn: str) -> str:
        """The same database as *dsn*, through the pooler."""
        parts = urlsplit(dsn)
        user, at, _ = parts.netloc.rpartition("@")
        port = self._listener.sockets[0].getsockname()[1]
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        # Not left to start_server(), which takes a task that was cancelled for an error.
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: StreamReader, client: StreamWriter) -> None:
        self._writers.add(client)
        try:
            startup = await _read_startup(reader, client)
            if startup is not None:
                await self._serve_transactions(startup, reader, client)
        except (OSError, IncompleteReadError):
            pass  # One side is gone, and so the other side goes.
        finally:
            client.close()
            self._writers.discard(client)

    async def _serve_transactions(self, startup: bytes, reader: StreamReader, writer: StreamWriter) -> None:
        async with self._lend(startup) as server:
            greeting = server.greeting
        # Who asks for its own process number finds that it talks to somebody in between.
        key = _BACKEND_KEY + struct.pack("!III", 12, secrets.randbits(31), secrets.randbits(31))
        writer.write(greeting + key + _READY + struct.pack("!I", 5) + _IDLE)
        client = _Client(reader, writer)
        try:
            while not (await asyncio.shield(client.asking)).startswith(_TERMINATE):
                async with self._lend(startup) as server:
                    await _run_transaction(client, server)
        finally:
            client.asking.cancel()
            await asyncio.wait([client.asking])

    @asynccontextmanager
    async def _lend(self, startup: bytes) -> AsyncIterator[_ServerConnection]:
        """A connection for one transaction; one in the middle of something is closed and not lent again."""
        pool = self._pools.setdefault(startup, _Pool())
        if pool.open_count < _MOST_CONNECTIONS:
            # First as many as there may be: so every transaction is on another one than the one before.
            pool.open_count += 1
            server = await self._connect(startup)
        else:
            server = await pool.resting.get()
        try:
            yield server
        except BaseException:
            server.writer.transport.abort()
            pool.open_count -= 1
            raise
        pool.resting.put_nowait(server)

    async def _connect(self, startup: bytes) -> _ServerConnection:
        parts = urlsplit(self._server.dsn("postgres"))
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 5432)
        self._writers.add(writer)
        server = _ServerConnection(reader, writer)
        writer.write(startup)
        while not (message := await _read_message(reader)).startswith(_READY):
            if message.startswith(_ERROR):
                raise ConnectionError(message)
            if not message.startswith(_BACKEND_KEY):
                server.greeting += message
        return server


class _Client:
    """Reads one message ahead, and never stops in the middle of one."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.asking = asyncio.ensure_future(_read_message(reader))

    def take(self) -> bytes:
        """The message that has come."""
        message = self.asking.result()
        self.asking = asyncio.ensure_future(_read_message(self._reader))
        return message


async def _run_transaction(client: _Client, server: _ServerConnection) -> None:
    """Pass on what both sides say until the server is ready outside a transaction."""
    unanswered = 0
    answering = asyncio.ensure_future(_read_message(server.reader))
    try:
        while True:
            await asyncio.wait((client.asking, answering), return_when=asyncio.FIRST_COMPLETED)
            if client.asking.done():
                message = client.take()
                unanswered += message[:1] in _ASKS_TO_BE_READY
                server.writer.write(message)
                continue
            answer = answering.result()
            # A notification comes at any time, to whoever has the connection then: here to nobody.
            if not answer.startswith(_NOTIFICATION):
                client.writer.write(answer)
                await client.writer.drain()
            unanswered -= answer.startswith(_READY)
            if answer.startswith(_READY) and not unanswered and answer.endswith(_IDLE):
                return
            answering = asyncio.ensure_future(_read_message(server.reader))
    finally:
        answering.cancel()


async def _read_startup(reader: StreamReader, client: StreamWriter) -> bytes | None:
    """How a client introduces itself; None for one that only wants a statement to be cancelled."""
    while True:
        size, version = struct.unpack("!II", head := await reader.readexactly(8))
        body = await reader.readexactly(size - 8)
        if version in _ENCRYPTION_REQUESTS:
            client.write(b"N")
            continue
        return head + body if version == _VERSION_3 else None


async def _read_message(reader: StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
